"""What an agent of `sottovoce train` is given: our model and images, or a user's own."""

from pathlib import Path

import pytest
import torch

from sottovoce.distributed import train_worker
from sottovoce.distributed.launch import Training
from sottovoce.distributed.task import task_for
from sottovoce.errors import DataError, DistributedError, ProblemError, SottovoceError

CPU = torch.device("cpu")
FILE = """
import torch
from torch import nn
from beside import LEVELS

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, LEVELS), nn.Dropout(0.5))

def halves(agent, agents):
    x = torch.full((2500, 3), float(agent))
    y = torch.arange(2500) % LEVELS
    return (x, y), torch.utils.data.TensorDataset(x, y)

def prices(agent, agents):
    return (torch.ones(4, 3), torch.ones(4, LEVELS)), (torch.ones(4, 3), torch.zeros(4, LEVELS))

def squared(outputs, targets):
    return ((outputs - targets) ** 2).mean()

def unscored(agent, agents):
    return halves(agent, agents)[0], None

def short(agent, agents):
    return (torch.ones(4, 3), torch.ones(3)), None

def alone(agent, agents):
    return torch.ones(4, 3)

def no_model():
    return 3

number = 3
"""


BOUNDED = "ldp-dsgd:0.1"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("LEVELS = 2\n")
    (tmp_path / "own.py").write_text(FILE)
    return str(tmp_path / "own.py")


def test_shipped_images_are_divided_and_rounds_follow_the_largest_part() -> None:
    tasks = [task_for(Training(batch_size=64), agent, 5, CPU) for agent in (0, 4)]
    sizes = [len(task.samples[0]) for task in tasks]
    assert tasks[0].rounds == tasks[1].rounds == max(sizes) // 64
    assert not torch.equal(tasks[0].samples[0][:10], tasks[1].samples[0][:10])
    assert set(tasks[0].scores()) == {"accuracy", "loss"}


def test_a_user_s_own_model_starts_alike_at_every_agent_and_sees_its_own_data(file: str) -> None:
    training = Training(model=f"{file}:Net", data=f"{file}:halves", graph="path:2")
    training.check()
    state = torch.random.get_rng_state()
    first, second = (task_for(training, agent, 2, CPU) for agent in (0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.model[0].weight, second.model[0].weight)  # type: ignore[index]
    assert float(second.samples[0].mean()) == 1.0
    assert first.rounds == 100
    assert task_for(Training(**{**vars(training), "rounds": 7}), 0, 2, CPU).rounds == 7


def test_scores_are_of_all_unseen_samples_with_dropout_off(file: str) -> None:
    training = Training(model=f"{file}:Net", data=f"{file}:halves")
    task = task_for(training, 0, 2, CPU)
    with torch.no_grad():
        task.model[0].bias.copy_(torch.tensor([1.0, 0.0]))  # type: ignore[index, operator, union-attr]
    right = -torch.log_softmax(torch.tensor([1.0, 0.0]), 0)
    assert task.scores() == {"accuracy": 0.5, "loss": pytest.approx(float(right.mean()))}
    assert task.model.training


def test_a_loss_of_one_s_own_has_no_accuracy(file: str) -> None:
    training = Training(model=f"{file}:Net", data=f"{file}:prices", loss=f"{file}:squared")
    task = task_for(training, 0, 2, CPU)
    with torch.no_grad():
        task.model[0].weight.zero_()  # type: ignore[operator, union-attr, index]
        task.model[0].bias.fill_(3.0)  # type: ignore[operator, union-attr, index]
    assert task.scores() == {"loss": pytest.approx(9.0)}


def test_samples_that_are_trained_on_are_no_validation_where_they_are_bounded(file: str) -> None:
    for name in ("halves", "unscored"):
        training = Training(model=f"{file}:Net", data=f"{file}:{name}", algorithm=BOUNDED)
        if name == "halves":
            with pytest.raises(DataError, match="the same samples to train on and to validate"):
                task_for(training, 0, 5, CPU)
        else:
            assert task_for(training, 0, 5, CPU).scores() == {}


def test_samples_that_are_trained_on_are_never_scored(file: str) -> None:
    training = Training(model=f"{file}:Net", data=f"{file}:unscored")
    assert task_for(training, 0, 2, CPU).scores() == {}


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"data": "own:short"}, DataError, "two tensors .* of equal and positive length"),
        ({"data": "own:alone"}, DataError, "returned Tensor; accepted: two data sets"),
        ({"model": "own:no_model"}, ProblemError, "returned int; accepted: a torch.nn.Module"),
    ],
)
def test_what_a_user_s_function_returns_is_checked(
    file: str, changed: dict[str, str], error: type[SottovoceError], said: str
) -> None:
    own = {"model": f"{file}:Net", "data": f"{file}:halves"}
    own |= {name: text.replace("own", file) for name, text in changed.items()}
    with pytest.raises(error, match=said):
        task_for(Training(**own), 0, 2, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"model": "resnet"}, ProblemError, "'resnet' names no function; accepted: FILE.py:NAME"),
        ({"model": "own:missing"}, ProblemError, "has no 'missing'; it has .*Net"),
        ({"loss": "own:number"}, ProblemError, "is int; accepted: a function or a class"),
        ({"data": "none.py:data"}, DataError, "none.py cannot be read: No such file"),
        ({"data": "own:no_model"}, DataError, r"called as NAME\(agent, agents\), and takes \(\)"),
        ({"data": "own:halves", "partition": "shards:2"}, DataError, "leave the partition out"),
        ({"device": "abacus"}, DistributedError, "'abacus' cannot be used here"),
        ({"rounds": 0}, DistributedError, "rounds 0; all must be at least 1"),
    ],
)
def test_what_no_agent_could_start_with_is_refused(
    file: str, changed: dict[str, object], error: type[SottovoceError], said: str
) -> None:
    named = {name: str(text).replace("own", file) for name, text in changed.items()}
    given = {
        name: named[name] if isinstance(changed[name], str) else changed[name] for name in named
    }
    with pytest.raises(error, match=said):
        Training(**given).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "gpus", "agents", "local", "expected"),
    [
        ("cuda", 4, 4, 2, ("cuda:2", "cuda:2")),  # a GPU for each agent: NCCL
        ("cuda", 2, 5, 3, ("cuda:1", "cpu")),  # shared GPUs: messages through the CPU
        ("cuda:1", 2, 5, 3, ("cuda:1", "cpu")),
        ("cuda:1", 2, 1, 0, ("cuda:1", "cuda:1")),
        ("cpu", 2, 5, 3, ("cpu", "cpu")),
    ],
)
def test_agents_share_gpus_only_where_they_must(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    gpus: int,
    agents: int,
    local: int,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setattr(train_worker, "torch_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(agents))
    device, group = train_worker._places(text)
    assert (str(device), group) == expected
