"""Ports of the services: the usual ones, or free ones where those are taken."""

from __future__ import annotations

import socket

from pipeline.errors import RackpulseError

DEFAULT_PORTS = {
    "kafka": 19092,
    "store": 18123,
    "hall": 18080,
    "airflow": 18081,
    "alert-receiver": 18082,
    "writer": 18090,
    "collector": 18091,
    "alert-delivery": 18092,
}


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1 at this port now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose_ports(
    asked: dict[str, int], remembered: dict[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Pick a port for every service.

    Args:
        asked: ports that the person gave; taken means an error.
        remembered: ports of the run before in this state folder, tried before the usual ones.

    Returns:
        The ports, and a line for each that had to move.

    Raises:
        RackpulseError: a port that was asked for is taken.
    """
    ports: dict[str, int] = {}
    notes = []
    for name, usual in DEFAULT_PORTS.items():
        if name in asked:
            if not is_free(asked[name]):
                raise RackpulseError(
                    f"Port {asked[name]} for {name} is taken: free it, or give another with "
                    f"--port {name}=PORT"
                )
            ports[name] = asked[name]
            continue
        wanted = remembered.get(name, usual)
        # The controller of a Kafka node listens on the next port.
        span = 2 if name == "kafka" else 1
        candidate = wanted
        while any(
            candidate + step in ports.values() or not is_free(candidate + step)
            for step in range(span)
        ):
            candidate += 10
            if candidate > 65000:
                raise RackpulseError(f"No free port for {name} above {wanted}")
        if candidate != wanted:
            notes.append(f"port {wanted} is taken: {name} uses {candidate}")
        ports[name] = candidate
    return ports, notes
