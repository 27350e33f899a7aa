"""A server of exporter pages, healthy and sick, for tests of the collecting service."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GPUS = 4

Page = Callable[[str, int], bytes]


def dcgm_page(host: str, count: int, gpus: int = GPUS, extra_lines: int = 0) -> bytes:
    """A page of one host; power and energy move with every read."""
    lines = [
        "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
    ]
    for gpu in range(gpus):
        labels = f'gpu="{gpu}",UUID="GPU-{host}-{gpu}",modelName="NVIDIA GB300",Hostname="{host}"'
        lines.append(f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {1000 + gpu + count % 97 / 10}")
        lines.append(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {60 + gpu}")
        lines.append(f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {count * 1000 + gpu}")
        lines += [
            f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} {1900 + n % 7}" for n in range(extra_lines // gpus)
        ]
    return ("\n".join(lines) + "\n").encode()


class Exporters:
    """Serves ``/MODE/HOST``.

    Modes: ``ok``; ``hang`` never answers; ``500``; ``cut`` ends early though it promised
    more; ``cutline`` ends in the middle of a line; ``frozen`` is the same for ever; ``drip``
    sends a byte at a time; ``missing`` reports one GPU less; ``garbage`` is no text.

    Attributes:
        asked: requests by path.
        modes: mode that a host is in now, over the one in its path.
    """

    def __init__(self, page: Page = dcgm_page) -> None:
        self._page = page
        self.asked: Counter[str] = Counter()
        self.modes: dict[str, str] = {}
        self.port = 0
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, started: threading.Event) -> None:
        """Serve until stopped."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                self.asked[path] += 1
                if not await self._answer(path, writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> bool:
        _, mode, host = path.split("/", 2)
        mode = self.modes.get(host, mode)
        if mode == "hang":
            await self._stop.wait()
            return False
        if mode == "500":
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 22\r\n\r\ninternal server error\n")
            return True
        count = 0 if mode == "frozen" else self.asked[path]
        body = b"\x89PNG\x00\xff" if mode == "garbage" else self._page(host, count)
        if mode == "missing":
            body = b"".join(
                line for line in body.splitlines(keepends=True) if b'gpu="0"' not in line
            )
        if mode == "cutline":
            body = body[: len(body) * 2 // 3]
        length = len(body)
        if mode == "cut":
            body = body[: length // 2]
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
        writer.write(head.encode())
        if mode == "drip":
            for number in range(length):
                writer.write(body[number : number + 1])
                await writer.drain()
                await asyncio.sleep(0.2)
        writer.write(body)
        await writer.drain()
        return mode != "cut"

    def stop(self) -> None:
        """End, from another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)


@contextmanager
def exporters(page: Page = dcgm_page) -> Iterator[Exporters]:
    """A server in a thread of its own."""
    server = Exporters(page)
    started = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(started)), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)


class ExporterProcess:
    """The same server as a process of its own, so that it does not slow the collector down.

    Args:
        extra_lines: lines per page beside those of power, temperature and energy.
    """

    def __init__(self, extra_lines: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.exporters", str(extra_lines)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> ExporterProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def _main() -> None:
    extra = int(sys.argv[1])
    made: dict[str, bytes] = {}

    def page(host: str, count: int) -> bytes:
        """A page of which one reading moves; made once, for the server is not what is tested."""
        if host not in made:
            made[host] = dcgm_page(host, 0, extra_lines=extra)
        return made[host].replace(b" 1000.0\n", b" %d.5\n" % (1000 + count % 90))

    with exporters(page) as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _main()
