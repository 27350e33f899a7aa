"""HTTP sessions: a connection that lives on between requests of one user."""

from __future__ import annotations

import threading

from pipeline.clock import Clock
from pipeline.store.local import Role
from pipeline.store.server.engine import Connection, Engine
from pipeline.store.server.failure import StoreError

DEFAULT_TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 3600.0
MAX_SESSIONS = 200


class Session:
    """One session. While a statement runs in it, it is busy."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.busy = True
        self.expires_at = 0.0


class Sessions:
    """All sessions, by user and id."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[tuple[Role, str], Session] = {}

    def take(self, role: Role, session_id: str, *, must_exist: bool) -> Session:
        """The session of that id, a new one where there is none; busy until given back.

        Raises:
            StoreError: 373 it is busy, 372 it must exist and does not, 202 too many.
        """
        self.sweep()
        key = (role, session_id)
        with self._lock:
            session = self._sessions.get(key)
            if session is not None:
                if session.busy:
                    raise StoreError(373, f"Session {session_id} is locked by a concurrent client")
                session.busy = True
                return session
            if must_exist:
                raise StoreError(372, f"Session {session_id} not found")
            if len(self._sessions) >= MAX_SESSIONS:
                raise StoreError(202, f"Too many sessions, at most {MAX_SESSIONS}")
            session = Session(self._engine.connection(role))
            self._sessions[key] = session
            return session

    def give_back(self, role: Role, session_id: str, timeout_s: float, *, close: bool) -> None:
        """The statement is over; the session waits for the next one, or ends."""
        key = (role, session_id)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                return
            if close:
                del self._sessions[key]
            else:
                session.busy = False
                session.expires_at = self._clock.monotonic() + timeout_s
        if close:
            session.connection.close()

    def sweep(self) -> None:
        """Close the sessions that have waited too long."""
        now = self._clock.monotonic()
        with self._lock:
            old = [
                key
                for key, session in self._sessions.items()
                if not session.busy and session.expires_at < now
            ]
            expired = [self._sessions.pop(key) for key in old]
        for session in expired:
            session.connection.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.connection.close()
