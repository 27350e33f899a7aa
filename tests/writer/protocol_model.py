"""The exactly-once protocol as a small machine whose every interleaving can be walked.

One partition with a few messages, two writers, and a store that may crash. A writer may stop
anywhere for as long as it likes; a request may arrive long after its sender gave it up; an
insert that passed its fence may still be stored after it was told to die. What is checked is
in :func:`broken`.

The steps of a writer are those of ``pipeline/writer/state.py`` and ``insert.py``:
read the newest epoch → write a higher one → read it back → kill what is in flight → wait
until it is gone → read the highest stored offset → insert behind the fence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MESSAGES = 3
BLOCK = 2  # longest block, in messages


class Insert(NamedTuple):
    """An insert between its sending and its end.

    ``phase``: ``sent`` (on its way), ``running`` (its fence passed), ``dying`` (killed, but
    not gone yet: it may still be stored).
    """

    owner: tuple[int, int]
    first: int
    last: int
    phase: str


class Writer(NamedTuple):
    """A writer: what it does next, under which epoch, and from which offset."""

    step: str = "idle"
    epoch: int = 0
    next: int = 0


class State(NamedTuple):
    """Everything: rows by offset (how often stored), epochs, requests under way."""

    stored: tuple[int, ...] = (0,) * MESSAGES
    newest: tuple[int, int] = (0, -1)
    writers: tuple[Writer, ...] = (Writer(), Writer())
    inserts: frozenset[Insert] = frozenset()
    epochs: frozenset[tuple[int, int]] = frozenset()  # epoch rows on their way
    crashes: int = 0


@dataclass(frozen=True)
class Rules:
    """Which parts of the protocol are in force, and how far the walk goes."""

    epoch_fence: bool = True
    offset_fence: bool = True
    kill: bool = True
    wait_until_gone: bool = True
    read_back: bool = True
    max_epoch: int = 4
    max_crashes: int = 1


def broken(state: State) -> str | None:
    """What is wrong with a state: a message twice, or a hole that no one goes back to."""
    if max(state.stored) > 1:
        return "doubled"
    highest = _highest(state)
    if any(count == 0 for count in state.stored[: highest + 1]):
        return "lost"
    return None


def _highest(state: State) -> int:
    return max((offset for offset, count in enumerate(state.stored) if count), default=-1)


def _store(state: State, insert: Insert) -> State:
    stored = list(state.stored)
    for offset in range(insert.first, insert.last + 1):
        stored[offset] += 1
    state = state._replace(stored=tuple(stored), inserts=state.inserts - {insert})
    return _answer(state, insert, "stored")


def _answer(state: State, insert: Insert, step: str) -> State:
    """Tell the sender, if it still waits for this insert."""
    epoch, index = insert.owner
    writer = state.writers[index]
    if writer != Writer("await", epoch, insert.last + 1):
        return state
    return _with(state, index, writer._replace(step=step) if step == "stored" else Writer())


def _with(state: State, index: int, writer: Writer) -> State:
    writers = list(state.writers)
    writers[index] = writer
    return state._replace(writers=tuple(writers))


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Every next state, with the name of the step that leads there."""
    for index, writer in enumerate(state.writers):
        yield from _writer_steps(state, index, writer, rules)
    yield from _store_steps(state, rules)


def _writer_steps(
    state: State, index: int, writer: Writer, rules: Rules
) -> Iterator[tuple[str, State]]:
    me = f"w{index}"
    if writer.step == "idle":
        epoch = state.newest[0] + 1
        if epoch <= rules.max_epoch:
            yield f"{me} read epoch", _with(state, index, Writer("write", epoch))
    elif writer.step == "write":
        sent = state._replace(epochs=state.epochs | {(writer.epoch, index)})
        yield f"{me} send epoch", _with(sent, index, writer._replace(step="written?"))
    elif writer.step == "written?":
        if (writer.epoch, index) not in state.epochs:
            then = "back" if rules.read_back else "kill"
            yield f"{me} epoch written", _with(state, index, writer._replace(step=then))
        yield f"{me} epoch unclear", _with(state, index, Writer())
    elif writer.step == "back":
        mine = state.newest == (writer.epoch, index)
        yield (
            f"{me} read back",
            _with(state, index, writer._replace(step="kill") if mine else Writer()),
        )
    elif writer.step == "kill":
        inserts = state.inserts
        if rules.kill:
            inserts = frozenset(
                item._replace(phase="dying") if item.phase == "running" else item
                for item in inserts
            )
        killed = state._replace(inserts=inserts)
        yield f"{me} kill", _with(killed, index, writer._replace(step="gone?"))
    elif writer.step == "gone?":
        gone = all(item.phase == "sent" for item in state.inserts)
        if gone or not (rules.wait_until_gone and rules.kill):
            yield f"{me} all gone", _with(state, index, writer._replace(step="read"))
    elif writer.step == "read":
        behind = _highest(state) + 1
        yield f"{me} read stored", _with(state, index, writer._replace(step="own", next=behind))
    elif writer.step == "own":
        for last in range(writer.next, min(writer.next + BLOCK, MESSAGES)):
            insert = Insert((writer.epoch, index), writer.next, last, "sent")
            sent = state._replace(inserts=state.inserts | {insert})
            waiting = writer._replace(step="await", next=last + 1)
            yield f"{me} insert {writer.next}-{last}", _with(sent, index, waiting)
    elif writer.step in ("await", "stored"):
        yield f"{me} unclear", _with(state, index, Writer())
        if writer.step == "stored":
            yield f"{me} goes on", _with(state, index, writer._replace(step="own"))


def _store_steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    for epoch in state.epochs:
        arrived = state._replace(newest=max(state.newest, epoch), epochs=state.epochs - {epoch})
        yield f"epoch {epoch} arrives", arrived
    for item in state.inserts:
        if item.phase == "sent":
            passes = not rules.epoch_fence or state.newest == item.owner
            passes = passes and (not rules.offset_fence or _highest(state) < item.first)
            others = state.inserts - {item}
            if passes:
                running = others | {item._replace(phase="running")}
                yield f"{item} passes its fence", state._replace(inserts=running)
            else:
                fenced = _answer(state._replace(inserts=others), item, "fenced")
                yield f"{item} is fenced", fenced
        else:
            yield f"{item} is stored", _store(state, item)
        if item.phase == "dying":
            yield f"{item} is gone", state._replace(inserts=state.inserts - {item})
    if state.crashes < rules.max_crashes:
        # Whether a running insert was renamed into place before the crash is "is stored" above.
        yield (
            "store crashes",
            state._replace(
                inserts=frozenset(item for item in state.inserts if item.phase == "sent"),
                crashes=state.crashes + 1,
            ),
        )


def _settled(state: State, rules: Rules) -> State:
    """Drop requests that can never have an effect any more, to keep the walk short.

    The newest epoch and the highest offset only rise, so what they fence now they fence for
    ever; and a writer that waits for such an insert can always call it unclear.
    """
    epochs = frozenset(epoch for epoch in state.epochs if epoch > state.newest)

    def live(item: Insert) -> bool:
        if item.phase != "sent":
            return True
        fenced = rules.epoch_fence and item.owner < state.newest
        return not fenced and not (rules.offset_fence and _highest(state) >= item.first)

    inserts = frozenset(item for item in state.inserts if live(item))
    return state._replace(epochs=epochs, inserts=inserts)


class Walk(NamedTuple):
    """What a walk over all interleavings found."""

    states: int
    fault: str | None
    trace: tuple[str, ...]
    completes: bool


def walk(rules: Rules) -> Walk:
    """Visit every reachable state, breadth first, and stop at the first broken one."""
    start = State()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    completes = False
    while queue:
        state = queue.popleft()
        fault = broken(state)
        if fault:
            return Walk(len(came_from), fault, _trace(state, came_from), completes)
        completes = completes or all(state.stored)
        for name, reached in steps(state, rules):
            following = _settled(reached, rules)
            if following not in came_from:
                came_from[following] = (state, name)
                queue.append(following)
    return Walk(len(came_from), None, (), completes)


def _trace(state: State, came_from: dict[State, tuple[State, str] | None]) -> tuple[str, ...]:
    names: list[str] = []
    while (origin := came_from[state]) is not None:
        state, name = origin
        names.append(name)
    return tuple(reversed(names))
