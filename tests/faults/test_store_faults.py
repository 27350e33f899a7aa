"""The store dies, is slow, says no, or stores and does not say so."""

from __future__ import annotations

import json
import random
import threading
import time

from pipeline.store import connect
from tests.faults.ledger import times
from tests.faults.proxy import Request, StoreProxy
from tests.faults.scene import Load, Scene
from tests.support.wait import wait_until
from tests.writer.running import settings_of, stored


def rows_of(scene: Scene, stream: str = "gpu") -> int:
    return sum(stored(scene.settings, stream).values())


def wait_for_more(scene: Scene, rows: int = 1, timeout_s: float = 120) -> None:
    before = rows_of(scene)
    wait_until(lambda: rows_of(scene) >= before + rows, "more rows", timeout_s)


def test_store_killed_in_mid_insert(scene: Scene) -> None:
    kills = times(3, 25)
    moments = random.Random(5)  # noqa: S311
    with scene.writer("--linger", "0.02"):
        with Load(scene, ["gpu", "event"], per_s=60, rows=(1, 400)):
            for _ in range(kills):
                wait_for_more(scene)
                time.sleep(moments.uniform(0.0, 0.5))
                scene.store.kill9()
                scene.store.start()
            wait_for_more(scene)
        scene.check("store killed -9 at random points and restarted", kills, timeout_s=90)


def test_store_answers_that_it_can_not_now(scene: Scene) -> None:
    refusals = times(8, 60)
    codes = (241, 242, 252, 243)
    count = 0

    def refuse(request: Request) -> None:
        nonlocal count
        count += 1
        if count <= refusals and count % 3:
            request.fail(codes[count % len(codes)])
        else:
            request.answer(*request.forward())

    with StoreProxy(scene.store.settings) as proxy:
        proxy.rule = refuse
        through = settings_of(proxy.settings, scene.kafka.bootstrap)
        with Load(scene, ["gpu", "event"], per_s=40), scene.writer(settings=through):
            wait_until(lambda: count > refusals, "the refusals", 240)
        with scene.writer(settings=through):
            scene.check("store answers 241, 242, 243, 252", refusals)


def test_answer_lost_after_the_insert_was_stored(scene: Scene) -> None:
    losses = times(6, 60)
    count = 0
    kinds = random.Random(6)  # noqa: S311

    def lose(request: Request) -> None:
        nonlocal count
        count += 1
        if count > losses:
            request.answer(*request.forward())
            return
        kind = kinds.choice(["stored", "stored_159", "not_stored", "not_stored_209", "fine"])
        if kind == "fine" or kind.startswith("stored"):
            answer = request.forward()
            if kind == "fine":
                request.answer(*answer)
                return
        if kind.endswith(("159", "209")):
            request.fail(int(kind[-3:]))
        else:
            request.hang_up()

    with StoreProxy(scene.store.settings) as proxy:
        proxy.rule = lose
        through = settings_of(proxy.settings, scene.kafka.bootstrap)
        with Load(scene, ["gpu", "event"], per_s=40), scene.writer(settings=through):
            wait_until(lambda: count > losses, "the lost answers", 240)
        with scene.writer(settings=through):
            scene.check("time-outs and resets, the insert stored or not", losses)


def test_insert_arrives_after_another_writer_took_over(scene: Scene) -> None:
    """A writer is stopped between its check and its insert: its insert comes hours late."""
    rounds = times(1, 6)
    with StoreProxy(scene.store.settings) as proxy:
        through = settings_of(proxy.settings, scene.kafka.bootstrap)
        for _ in range(rounds):
            held: list[Request] = []
            go = threading.Event()
            answers: list[int] = []

            def hold(
                request: Request, held: list[Request] = held, go: threading.Event = go,
                answers: list[int] = answers,
            ) -> None:  # fmt: skip
                held.append(request)
                go.wait(60)
                status, headers, body = request.forward()
                named = {name.lower(): value for name, value in headers}
                answers.append(int(json.loads(named["x-clickhouse-summary"])["written_rows"]))
                request.answer(status, headers, body)

            proxy.rule = hold
            scene.produce("gpu", 10)
            late = scene.writer("--group", "late", "--instance", "7", settings=through).start()
            wait_until(lambda h=held: h, "the insert to be on its way", 30)
            with scene.writer(name="-new"):
                scene.wait_stored()
                go.set()
                wait_until(lambda a=answers: a, "the late insert to be answered", 30)
            late.kill9()
            proxy.rule = None
            assert answers[0] == 0, "the late insert must store nothing"
    scene.check("insert arrives after another writer took over", rounds)


def test_slow_store_keeps_the_group_and_the_memory(scene: Scene) -> None:
    """Every insert takes seconds: the loop keeps polling, and what is held stays bounded."""

    def slow(request: Request) -> None:
        time.sleep(2.0)  # the fault itself: a store that is slow
        request.answer(*request.forward())

    with StoreProxy(scene.store.settings) as proxy:
        proxy.rule = slow
        through = settings_of(proxy.settings, scene.kafka.bootstrap)
        writer = scene.writer("--buffer-mb", "1", settings=through)
        with Load(scene, ["gpu"], per_s=100, rows=(50, 100)), writer:
            wait_for_more(scene, 2_000, 90)
            wait_for_more(scene, 2_000, 90)
        proxy.rule = None
        with scene.writer(settings=through):
            scene.check("store slow: two seconds per insert", 1, timeout_s=120)


def test_a_full_buffer_is_stored_without_waiting_for_more(scene: Scene) -> None:
    """Reading is paused for want of memory: whoever waits for more rows waits for nothing."""
    scene.produce("gpu", 400, rows=50)
    with scene.writer("--buffer-mb", "1", "--linger", "300"):
        wait_for_more(scene, 10_000, 60)
    with scene.writer():
        scene.check("buffer full long before its time", 1)


def test_store_away_for_a_while(scene: Scene) -> None:
    rounds = times(1, 4)
    with scene.writer() as writer:
        with Load(scene, ["gpu", "event"], per_s=40):
            for _ in range(rounds):
                wait_for_more(scene)
                scene.store.stop()
                time.sleep(3)  # the fault itself: away for longer than a few tries
                assert writer.running
                scene.store.start()
                wait_for_more(scene, 100)
        scene.check("store stopped and started", rounds)


def test_killed_insert_leaves_nothing(scene: Scene) -> None:
    """KILL QUERY by a writer that takes over, while inserts of the other run."""
    rounds = times(2, 20)
    with Load(scene, ["gpu"], per_s=100, rows=(100, 400)):
        one = scene.writer("--group", "one", "--linger", "0.01").start()
        wait_for_more(scene, 200)
        with connect(scene.settings) as client:
            for _ in range(rounds):
                client.command(
                    "KILL QUERY WHERE startsWith(Settings['log_comment'], 'rackpulse-write/') SYNC"
                )
                wait_for_more(scene)  # inserts run again
        one.stop()
    with scene.writer():
        scene.check("inserts killed in the store", rounds)
