"""The earlier version of the service that runs beside this one (`tests/upgrade`)."""

import tarfile
from pathlib import Path
from typing import Final

from tests.nursery import ROOT

_ARCHIVE: Final = ROOT / "tests" / "upgrade" / "9b6d3bc.tar.xz"


def unpacked(folder: Path) -> Path:
    """Unpacks it into a folder that Python is to look at first."""
    with tarfile.open(_ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 does not have it
        archive.extractall(folder)  # noqa: S202 (this project's own)
    return folder
