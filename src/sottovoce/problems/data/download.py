"""Published files that the package does not hold: fetched once, verified, kept in the cache."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import DataError


@dataclass(frozen=True)
class Published:
    """Where files lie and how to recognise them.

    name: of the folder that holds them. mirrors: addresses to which a file's name is added. hashes:
    by file name, as pooch takes them.
    """

    title: str
    name: str
    mirrors: Sequence[str]
    hashes: Mapping[str, str]

    def fetch(self) -> Path:
        """Fetch what the user's cache lacks and return its folder; checksums are verified."""
        try:
            import pooch  # type: ignore[import-untyped]
        except ImportError:
            raise self._offline(["the package pooch is not installed"]) from None
        folder = Path(pooch.os_cache("sottovoce")) / self.name
        for file, known in self.hashes.items():
            reasons = []
            for mirror in self.mirrors:
                downloader = pooch.HTTPDownloader(
                    progressbar=_Progress(file), chunk_size=1 << 16, timeout=20
                )
                try:
                    pooch.retrieve(f"{mirror}{file}", known, file, folder, downloader=downloader)
                    break
                except (OSError, ValueError) as error:
                    reasons.append(f"{mirror}: {error}")
            else:
                raise self._offline(reasons)
        return folder

    def _offline(self, reasons: list[str]) -> DataError:
        urls = "\n".join(f"  {self.mirrors[0]}{file}" for file in self.hashes)
        return DataError(
            f"{self.title} is not on this machine and could not be downloaded. Download\n{urls}\n"
            f"into one folder and name it with data_dir (--data-dir) or SOTTOVOCE_DATA; a "
            f"subfolder {self.name!r} of it is searched too. What failed:\n  "
            + "\n  ".join(reasons)
        )


class _Progress:
    """A progress line on stderr, in the form that pooch calls: total, update, reset, close."""

    def __init__(self, title: str) -> None:
        self.title, self.total, self.done = title, 0, 0

    def update(self, size: int) -> None:
        self.done += size
        share = f" {100 * self.done // self.total:3d} %" if self.total else ""
        print(
            f"\r{self.title}: {self.done / 1e6:.1f} MB{share}", end="", file=sys.stderr, flush=True
        )

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        print(file=sys.stderr)
