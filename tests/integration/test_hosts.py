"""Agents on two hosts: over ssh, whatever happens to the notebook or to the connection."""

from __future__ import annotations

import os

import pytest

from support.hosts import Hosts

pytestmark = pytest.mark.may_be_skipped


def test_the_hosts_share_the_checkout_and_one_folder_only(hosts: Hosts) -> None:
    names = [hosts.a.run(*words, "hostname").stdout for words in ((), ("ssh", "hostB"))]
    assert names == ["hostA\n", "hostB\n"]
    hosts.a.run("touch", "/tmp/of-a", "/dev/shm/of-a", str(hosts.shared / "of-both"))
    assert hosts.a.files() == {"/tmp/of-a", "/dev/shm/of-a"}
    assert not hosts.b.files()
    assert not os.path.exists("/tmp/of-a")
    hosts.b.run("rm", str(hosts.shared / "of-both"))
    hosts.a.run("rm", "/tmp/of-a", "/dev/shm/of-a")
    hosts.cut()
    tried = hosts.a.run("ssh", "-o", "ConnectTimeout=1", "hostB", "true", check=False)
    assert "Connection timed out" in tried.stderr
    hosts.restore()
    hosts.a.run("ssh", "hostB", "true")
