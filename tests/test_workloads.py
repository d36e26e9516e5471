"""Census records and Shakespeare's words: whole, divided by natural owners, and learnt."""

import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sottovoce.errors import DataError, ProblemError
from sottovoce.problems.data import adult, census, records, shakespeare
from sottovoce.problems.data.census import load_census, load_full_census
from sottovoce.problems.data.records import Records, by_owner, shipped
from sottovoce.problems.data.shakespeare import CONTEXT, OTHER, load_plays
from sottovoce.problems.data.word_models import SmallTransformer, WordAverage, initialise_words
from sottovoce.problems.gradients.clipped import refuse_interacting_samples
from sottovoce.studies.baselines import (
    BaselineSettings,
    baselines_study,
    bigram,
    softmax_regression,
)

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_census_records_have_one_feature_of_each_column_or_none_where_unknown():
    data = load_census()
    assert data.training.inputs.shape == (6000, 123)
    assert data.validation.inputs.shape == (2000, 123)
    assert sum(data.groups) == 123
    assert data.training.inputs.unique().tolist() == [0.0, 1.0]
    for part in data.training.inputs.split(list(data.groups), 1):
        assert part.sum(1).max() == 1
    complete = data.training.inputs.sum(1) == len(data.columns)
    assert 0.9 < complete.float().mean() < 0.95  # 7.4 % of the published records lack a value
    assert data.training.labels.float().mean() == pytest.approx(0.2408, abs=0.02)
    first = data.describe(data.training.inputs[0])
    assert first[0] == "age below 26"
    assert len(first) == 14


def test_the_speeches_are_those_of_the_plays():
    plays = load_plays()
    assert len(plays.training.owners) == 20
    assert plays.training.inputs.shape[1] == CONTEXT
    assert len(plays.words) == 1024
    assert int(plays.training.labels.min()) > OTHER
    said = {plays.text(row) for row in plays.training.inputs[plays.training.owner == 0]}
    assert "to be or not to be that is" in said
    assert plays.training.inputs.max() < 1024


def test_validation_speeches_are_not_trained_on():
    plays = load_plays()
    rows = [
        {tuple(row) for row in torch.cat([part.inputs, part.labels[:, None]], 1).tolist()}
        for part in (plays.training, plays.validation)
    ]
    common = [row for row in rows[0] & rows[1] if OTHER not in row]
    assert len(common) < 0.01 * len(rows[1])  # Refrains that are said twice.


@pytest.mark.parametrize("load", [load_census, load_plays])
@pytest.mark.parametrize("agents", [2, 5, 12])
def test_agents_hold_whole_groups_of_about_equal_size(load, agents):
    data = load().training
    held = by_owner(data, agents)
    assert sorted(torch.cat(held.indices).tolist()) == list(range(len(data)))
    groups = [set(data.owner[own].tolist()) for own in held.indices]
    assert sum(map(len, groups)) == len(set(data.owner.tolist()))
    if agents == 5:
        assert max(held.sizes) < 1.3 * min(held.sizes)


def test_more_agents_than_groups_are_refused():
    with pytest.raises(DataError, match="30 agents for 15 groups"):
        by_owner(load_census().training, 30)


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    known = {"speeches.gz": "0" * 64}
    with pytest.raises(DataError, match=r"corrupt: it has sha256:\w+, expected 0000"):
        shipped("shakespeare", known)
    with pytest.raises(DataError, match="not installed completely"):
        shipped("shakespeare", {"other.gz": ""})


@pytest.mark.parametrize(
    ("folder", "sums"), [("census", census.SUMS), ("shakespeare", shakespeare.SUMS)]
)
def test_the_sums_of_the_files_are_those_that_the_loaders_know(folder, sums):
    place = Path(records.__file__).parent / "files" / folder
    lines = (place / "SHA256SUMS").read_text().splitlines()
    assert dict(line.split("  ")[::-1] for line in lines) == sums
    for name, known in sums.items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == known
    assert sum(file.stat().st_size for file in place.iterdir()) < 300_000
    assert (place / "LICENSE").is_file()


def test_the_scripts_code_records_and_speeches_as_they_say():
    made = script("make_census_sample")
    columns = [made.column("age", []), made.column("race", ["White", "?", "Black"])]
    assert columns[1]["values"] == ["Black", "White"]
    found = made.coded([["25", "White", "<=50K"], ["50", "?", ">50K"]], columns)
    assert found.tolist() == [[0, 1, 0], [4, adult.MISSING, 1]]
    spoken = script("make_shakespeare_sample").speeches(
        "HAM.\nTo be, or [aside] not--\n\nGHOST.\nList!\n\nHAM.\n'Tis so.\n", "HAM"
    )
    assert list(spoken) == [["to", "be", "or", "not"], ["tis", "so"]]


PERSON = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder with two short files in the form of the published ones, and their hashes."""
    folder = tmp_path / "adult"
    folder.mkdir()
    contents = {
        "adult.data": f"{PERSON}\n{PERSON.replace('<=', '>').replace('Adm-clerical', '?')}\n\n",
        "adult.test": f"|1x3 Cross validator\n{PERSON}.\n",
    }
    hashes = {}
    for name, content in contents.items():
        (folder / name).write_text(content)
        hashes[name] = hashlib.sha256(content.encode()).hexdigest()
    monkeypatch.setattr(adult, "HASHES", hashes)
    return folder


@pytest.mark.parametrize("inside", [True, False])
def test_all_census_records_are_read_from_the_published_files(published, inside):
    data = load_full_census(published if inside else published.parent)
    assert data.training.inputs.shape == (2, 123)
    assert data.training.labels.tolist() == [0, 1]
    assert data.validation.labels.tolist() == [0]
    assert "age 33 to 40" in data.describe(data.training.inputs[0])
    assert [data.training.owners[at] for at in data.training.owner] == ["Adm-clerical", "unknown"]
    assert int(data.training.inputs[1].sum()) == 13


def test_all_census_records_are_found_by_the_environment_or_told_to_be_missing(
    published, tmp_path, monkeypatch
):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    assert len(load_full_census().training) == 2
    with pytest.raises(DataError, match=r"no adult\.data and adult\.test in"):
        load_full_census(tmp_path / "elsewhere")
    monkeypatch.delenv("SOTTOVOCE_DATA")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache")
    nowhere = replace(adult.SOURCE, mirrors=("http://127.0.0.1:9/",))
    monkeypatch.setattr(adult, "SOURCE", nowhere)
    with pytest.raises(DataError, match="UCI Adult is not on this machine"):
        load_full_census()


def test_another_file_of_the_same_name_is_refused(published):
    (published / "adult.test").write_text(PERSON)
    with pytest.raises(DataError, match="the published file"):
        load_full_census(published)


def test_census_agents_reach_the_accuracy_of_logistic_regression():
    settings = BaselineSettings(algorithm="pdsgd", stepsize="experiment:1/k^0.5", insecure_seed=1)
    found = list(baselines_study(settings).data["accuracies"].values())
    assert found[1] == pytest.approx(0.84, abs=0.01)
    assert found[0] > found[1] - 0.02
    assert found[2] == pytest.approx(0.7575)


def test_images_are_trained_beside_a_softmax_regression_that_learns():
    asked = {"data": "subset", "model": "softmax", "stepsize": "0.1/k^0.5", "rounds": 50}
    found = list(baselines_study(BaselineSettings(**asked, insecure_seed=1)).data["accuracies"])
    assert found[1] == "softmax regression by scipy"
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    part = Records(x, x.argmax(1), torch.zeros(300).long(), ("one",))
    assert softmax_regression(part, part)[1] > 0.98


def test_the_bigram_names_the_word_that_follows_most_often():
    words = torch.tensor([[0, 3], [0, 3], [0, 3], [0, 4]])
    part = Records(words, torch.tensor([5, 5, 6, 7]), torch.zeros(4).long(), ("one",))
    other = Records(words[[0, 3]], torch.tensor([5, 6]), torch.zeros(2).long(), ("one",))
    assert bigram(part, other)[1] == 0.5


@pytest.mark.parametrize("kind", [WordAverage, SmallTransformer])
def test_word_models_treat_samples_apart_and_learn(kind):
    plays = load_plays()
    model = kind(1024, CONTEXT)
    initialise_words(model, 0)
    refuse_interacting_samples(model, plays.training.inputs[:2])
    x, y = plays.training.at(torch.arange(32))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 2
    rows = model.embedding.weight.grad.abs().sum(1).nonzero()[:, 0]
    assert rows.tolist() == x.unique().tolist()


def test_the_transformer_has_half_a_million_parameters_and_its_places_see_only_earlier_words():
    model = SmallTransformer(1024, CONTEXT)
    initialise_words(model, 0)
    assert sum(one.numel() for one in model.parameters()) == 477_344
    assert sum(one.numel() for one in WordAverage(1024, CONTEXT).parameters()) == 66_816
    with pytest.raises(ProblemError, match="not a multiple of 3 heads"):
        SmallTransformer(10, 4, width=8, heads=3)
    block, x = model.blocks[0], torch.randn(1, 5, 104)
    changed = x.clone()
    changed[:, 3] += 1
    assert torch.equal(block(x)[:, :3], block(changed)[:, :3])
    assert not torch.equal(block(x)[:, 4], block(changed)[:, 4])


def test_starting_words_depend_on_the_seed_alone():
    one, two, other = (WordAverage(20, 4) for _ in range(3))
    for model, seed in ((one, 3), (two, 3), (other, 4)):
        initialise_words(model, seed)
    assert torch.equal(one.embedding.weight, two.embedding.weight)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
