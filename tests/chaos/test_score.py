"""The faults that are planted to check the chaos: each fits the code as it is, and one of them is looked for."""

import subprocess

import pytest

from tests.chaos.score.__main__ import search
from tests.chaos.score.planting import Fault, check, faults


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_fits_the_code(fault: Fault) -> None:
    try:
        check(fault)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"renew {fault.path}, or take it out if what it breaks is gone: {error.stderr}")


def test_a_planted_fault_is_found() -> None:
    (forgotten,) = [fault for fault in faults() if fault.name == "count_forgotten"]
    assert search(forgotten, 1, size=("400", "1", "2")) is not None
