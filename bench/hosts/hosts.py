"""Hosts of one's own on one machine: network namespaces at a switch, each link limited to a rate. Needs root and ip."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


class Hosts:
    """Named by their numbers; all reach each other by their addresses. They are there within a `with`."""

    def __init__(self, count: int, rate: str = "") -> None:
        """`rate` as tc writes it, of what leaves each host; empty: no limit."""
        self.count = count
        self._rate = rate
        self._name = f"zero{os.getpid()}"
        self._switch = f"{self._name}-switch"

    def __enter__(self) -> Hosts:
        try:
            ip("netns", "add", self._switch)
            ip("-n", self._switch, "link", "add", "name", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
            for host in range(self.count):
                self._add(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _add(self, host: int) -> None:
        own, port = self.namespace(host), f"port{host}"
        ip("netns", "add", own)
        ip("-n", own, "link", "add", "link0", "type", "veth", "peer", "name", port, "netns", self._switch)
        ip("-n", self._switch, "link", "set", port, "master", "bridge")
        ip("-n", self._switch, "link", "set", port, "up")
        ip("-n", own, "addr", "add", f"{self.address(host)}/24", "dev", "link0")
        for link in ("lo", "link0"):
            ip("-n", own, "link", "set", link, "up")
        if self._rate:
            shape = ["tbf", "rate", self._rate, "burst", "256kb", "latency", "100ms"]
            subprocess.run(["ip", "netns", "exec", own, "tc", "qdisc", "add", "dev", "link0", "root", *shape], check=True)

    def namespace(self, host: int) -> str:
        return f"{self._name}-{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.78.0.{host + 1}"

    def start(self, host: int, command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        words = ["ip", "netns", "exec", self.namespace(host), *command]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    def outputs(self, commands: list[list[str]], variables: list[dict[str, str]], enough: str = "") -> str:
        """One process on each host; what they said. Where one has said `enough`, all may end as they like."""
        started = [self.start(host, *each) for host, each in enumerate(zip(commands, variables))]
        texts = [process.communicate()[0] for process in started]
        said = "".join(texts)
        if any(process.returncode for process in started) and not (enough and enough in said):
            raise SystemExit(f"{commands[0]} failed:\n" + said)
        return said

    def torchrun(self, ranks: int, port: int, command: list[str], variables: dict[str, str]) -> str:
        """So many ranks of the command on each host; what they said.

        A launcher may have nobody left to tell at its end that it ends: a result is enough.
        """
        nodes = ["--nnodes", str(self.count), "--nproc-per-node", str(ranks)]
        place = ["--master-addr", self.address(0), "--master-port", str(port)]
        words = [["torchrun", *nodes, "--node-rank", str(host), *place, *command] for host in range(self.count)]
        return self.outputs(words, [variables] * self.count, enough="RESULT ")

    def sent(self, host: int) -> int:
        """Bytes that the host has sent, by its interface."""
        links = json.loads(ip("-n", self.namespace(host), "-s", "-j", "link", "show", "dev", "link0"))
        return int(links[0]["stats64"]["tx"]["bytes"])

    def _remove(self) -> None:
        for name in [self._switch, *(self.namespace(host) for host in range(self.count))]:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

