"""The attack suite with small counts against the built binary, a test for each of its sections.

Knows no attack itself.
"""

import asyncio
import sys

import pytest

from conftest import BINARY, ROOT

sys.path.insert(0, str(ROOT / "tools"))

from attack.report import Report  # noqa: E402
from attack.run import SECTIONS, run_section  # noqa: E402
from attack.stage import Options  # noqa: E402

SEED = 20


@pytest.mark.parametrize("section", SECTIONS)
def test_the_server_withstands(section, tmp_path):
    report = Report(SEED)
    asyncio.run(run_section(section, Options(BINARY, tmp_path, SEED, core=True), report))
    failures = [f"{failure.what}\n  {failure.how[:1000]}" for failure in report.failures]
    assert not failures, "\n".join(failures)
    assert report.counts, "nothing was tried"
