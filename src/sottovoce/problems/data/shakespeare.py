"""A sample of Shakespeare's plays inside the package: the word that follows eight others.

The texts are in the public domain; `scripts/make_shakespeare_sample.py` makes the sample. A record
is a word of a speech, the label, with the eight words before it; neighbouring records overlap.
Every seventh speech is kept for validation, so that no speech is in both parts.
"""

import gzip
from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sottovoce.errors import DataError
from sottovoce.problems.data.records import Records, shipped

CONTEXT = 8
"""Words before the one to be told."""
VOCABULARY = 1024
OTHER = 0
"""The number of all words that are too rare to have their own."""
SUMS = {"speeches.gz": "19461a626cb20f56fe3f53e5ad7071304dd3d12119d87711a6e323706855e9ea"}
_HELD_OUT = 7


@dataclass(frozen=True, eq=False)
class Plays:
    """Records to train on and records that training never sees, with the words they stand for.

    Inputs are (n, 8) int64, numbers of words; labels the number of the next word, never `OTHER`.
    The natural owner of a record is its speaker.
    """

    training: Records
    validation: Records
    words: tuple[str, ...]

    def text(self, numbers: Tensor) -> str:
        """The words behind numbers, rare ones as an underscore."""
        return " ".join(self.words[number] for number in numbers.flatten().tolist())


@cache
def load_plays(vocabulary: int = VOCABULARY) -> Plays:
    """Load the shipped speeches with the `vocabulary` - 1 most frequent words of the training part.

    Equally frequent words are taken in the order of the alphabet.
    """
    if vocabulary < 2:
        raise DataError(f"a vocabulary of {vocabulary} words; accepted: at least 2")
    file = shipped("shakespeare", SUMS) / "speeches.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    spoken = [(name, text.split()) for name, _, text in (line.partition("\t") for line in lines)]
    speakers = tuple(dict.fromkeys(name for name, _ in spoken))
    training = [one for at, one in enumerate(spoken) if at % _HELD_OUT]
    counts = Counter(word for _, words in training for word in words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 1]
    numbers = {word: number for number, word in enumerate(frequent, 1)}
    validation = spoken[::_HELD_OUT]
    parts = [_windows(part, numbers, speakers) for part in (training, validation)]
    return Plays(parts[0], parts[1], ("_", *frequent))


def _windows(
    spoken: list[tuple[str, list[str]]], numbers: dict[str, int], speakers: tuple[str, ...]
) -> Records:
    rows, owners = [], []
    for name, words in spoken:
        coded = [numbers.get(word, OTHER) for word in words]
        for first in range(len(coded) - CONTEXT):
            if coded[first + CONTEXT] != OTHER:
                rows.append(coded[first : first + CONTEXT + 1])
                owners.append(speakers.index(name))
    table = torch.tensor(rows)
    return Records(table[:, :-1].contiguous(), table[:, -1], torch.tensor(owners), speakers)
