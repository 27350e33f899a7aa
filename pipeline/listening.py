"""The listening socket of a server on this machine."""

from __future__ import annotations

import socket

from pipeline.errors import RackpulseError

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Bind and listen on 127.0.0.1; whoever reads the address may connect at once.

    Accepted connections inherit TCP_NODELAY: an answer's body would else wait for the
    acknowledgement of its head, which a client that asks again and again delays by 40 ms.

    Args:
        port: 0 takes a free one.

    Raises:
        RackpulseError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(512)
    except OSError as exc:
        listener.close()
        raise RackpulseError(
            f"Port {port} is taken by another program: stop that one, or choose another port"
            " with --port, 0 for a free one"
        ) from exc
    return listener
