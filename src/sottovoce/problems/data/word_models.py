"""Small models that tell the next word: an average of embeddings, and a transformer.

Neither has statistics over samples, and neither ties its output to its embedding, so that an
embedding's gradient has rows for the words of the batch alone.
"""

import math

import torch
from torch import Tensor, nn

from sottovoce.errors import ProblemError


class WordAverage(nn.Module):
    """Predict the next word from the words before it, each with a weight of its own place.

    Words (n, context) to scores (n, vocabulary): embed, weigh by place, add up, tanh, dense. With
    1,024 words and width 32 it has 66,816 parameters.
    """

    def __init__(self, vocabulary: int, context: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.empty(context, width))
        self.out = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.out((self.embedding(words) * self.place).sum(-2).tanh())
        return scores


class SmallTransformer(nn.Module):
    """Predict the next word by attention: 477,344 parameters with 1,024 words.

    Words (n, context) to scores (n, vocabulary): embedding plus place, then blocks of attention and
    a dense layer of 4 times the width, each after a layer norm and added to its input (pre-norm),
    then a dense layer on the last place. Every place sees those before it and itself.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int = 104, heads: int = 4, blocks: int = 2
    ) -> None:
        super().__init__()
        if width % heads:
            raise ProblemError(f"width {width} is not a multiple of {heads} heads")
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words) + self.place
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.out(self.norm(x[..., -1, :]))
        return scores


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.before(x))
        result: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))
        return result

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.projections(x).unflatten(-1, (3, self.heads, -1))
        # Written out: fused attention has no rule for vmap.
        query, key, value = (parts[..., at, :, :].transpose(-2, -3) for at in range(3))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ value
        joined: Tensor = self.joined(mixed.transpose(-2, -3).flatten(-2))
        return joined


def initialise_words(model: nn.Module, seed: int) -> None:
    """Overwrite all weights of a word model from a generator of its own; biases become 0.

    Embeddings N(0, 1/4), so that plain SGD moves them soon; place weights N(1, 1/4) of an average,
    N(0, 1/100) of a transformer; dense layers N(0, 1/fan_in), norms scale 1 and shift 0.
    """
    generator = torch.Generator().manual_seed(seed)
    average = isinstance(model, WordAverage)

    def normal(like: Tensor, deviation: float) -> Tensor:
        return deviation * torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.copy_(normal(module.weight, 0.5))
            elif isinstance(module, nn.Linear):
                module.weight.copy_(normal(module.weight, module.in_features**-0.5))
                module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, WordAverage | SmallTransformer):
                start = 1.0 if average else 0.0
                module.place.copy_(start + normal(module.place, 0.5 if average else 0.1))
