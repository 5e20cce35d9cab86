"""The libraries for JavaScript, whose tests are in `clients.test.js` here. `tools/test-clients.sh` installs them."""

import os
import subprocess

from conftest import API_KEY
from server import TARGET


def test_libraries_for_javascript(url):
    environment = os.environ | {"URL": url, "KEY": API_KEY}
    command = ["node", "--test", "clients.test.js"]
    ended = subprocess.run(command, cwd=TARGET / "clients/npm", env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout
