"""The walk ends, survives what controllers do wrong, and reads less the second time."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.clock import ManualClock
from pipeline.collectors.redfish.walk import LOOK_AGAIN_S, Credentials, Walker, WalkError
from pipeline.errors import ConfigError
from tests.collectors_redfish.helpers import read, rows

Tree = dict[str, Any]


class Controller:
    """A controller that serves a dictionary of resources."""

    def __init__(self, tree: Tree, *, password: str | None = None) -> None:
        self.tree = tree
        self.asked: Counter[str] = Counter()
        self.password = password
        self.tokens: set[str] = set()
        self.open_now = self.open_most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        self.asked[path] += 1
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        await asyncio.sleep(0)
        self.open_now -= 1
        if request.method == "POST":
            if json.loads(request.content)["Password"] != self.password:
                return httpx.Response(401)
            token = f"token-{len(self.tokens)}"
            self.tokens.add(token)
            where = "/redfish/v1/SessionService/Sessions/1"
            return httpx.Response(201, headers={"X-Auth-Token": token, "Location": where})
        if request.method == "DELETE":
            self.tokens.discard(request.headers["X-Auth-Token"])
            return httpx.Response(204)
        if self.password and request.headers.get("X-Auth-Token") not in self.tokens:
            return httpx.Response(401)
        answer = self.tree.get(path, httpx.Response(404))
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


def walker(controller: Controller, clock: ManualClock | None = None, **kwargs: Any) -> Walker:
    http = httpx.AsyncClient(transport=httpx.MockTransport(controller))
    url = kwargs.pop("url", "http://bmc.test")
    return Walker(http, url, clock=clock or ManualClock(), **kwargs)


def pump(number: int) -> Tree:
    return {
        "@odata.type": "#Pump.v1_2_0.Pump",
        "Name": f"Pump {number}",
        "PumpSpeedPercent": {"Reading": 10.0 * number},
        "Links": {"Chassis": [{"@odata.id": "/redfish/v1/Chassis/1"}]},
        "RelatedItem": [{"@odata.id": "/redfish/v1"}],
    }


def cdu(pumps: Tree) -> Tree:
    root = "/redfish/v1"
    return {
        root: {
            "@odata.type": "#ServiceRoot.v1_20_0.ServiceRoot",
            "UUID": "AAAA-BBBB",
            "ThermalEquipment": {"@odata.id": f"{root}/ThermalEquipment"},
            "AccountService": {"@odata.id": f"{root}/AccountService"},
        },
        f"{root}/ThermalEquipment": {
            "@odata.type": "#ThermalEquipment.v1_2_0.ThermalEquipment",
            # A loop: the equipment names the root, and itself.
            "Oem": {"Up": {"@odata.id": root}, "Self": {"@odata.id": f"{root}/ThermalEquipment"}},
            "CDUs": {"@odata.id": f"{root}/ThermalEquipment/CDUs/1/Pumps"},
        },
        **pumps,
    }


PUMPS = "/redfish/v1/ThermalEquipment/CDUs/1/Pumps"


def test_walk_ends_and_pages_on() -> None:
    tree = cdu(
        {
            PUMPS: {
                "@odata.type": "#PumpCollection.PumpCollection",
                "Members": [{"@odata.id": f"{PUMPS}/1"}],
                "Members@odata.nextLink": f"{PUMPS}?$skip=1",
            },
            f"{PUMPS}?$skip=1": {
                "@odata.type": "#PumpCollection.PumpCollection",
                "Members": [{"@odata.id": f"{PUMPS}/2"}],
            },
            f"{PUMPS}/1": pump(1),
            f"{PUMPS}/2": pump(2),
        }
    )
    controller = Controller(tree)
    found = rows(read(asyncio.run(walker(controller).walk())), "coolant")
    assert [(row["component_id"], row["pump_speed_percent"]) for row in found] == [
        (f"{PUMPS}/1", 10.0),
        (f"{PUMPS}/2", 20.0),
    ]
    assert {row["manager_id"] for row in found} == {"aaaa-bbbb"}
    assert max(controller.asked.values()) == 1
    assert "/redfish/v1/AccountService" not in controller.asked


def paged(following: object) -> Tree:
    """Two pumps on two pages; the first page names the second as ``following``."""
    kind = "#PumpCollection.PumpCollection"
    return cdu(
        {
            PUMPS: {
                "@odata.type": kind,
                "Members": [{"@odata.id": f"{PUMPS}/1"}],
                "Members@odata.nextLink": following,
            },
            f"{PUMPS}?$skip=1": {"@odata.type": kind, "Members": [{"@odata.id": f"{PUMPS}/2"}]},
            f"{PUMPS}/1": pump(1),
            f"{PUMPS}/2": pump(2),
        }
    )


@pytest.mark.parametrize(
    "following",
    [
        f"http://bmc.test{PUMPS}?$skip=1",
        f"HTTP://BMC.test:80{PUMPS}?$skip=1",
        f"//bmc.test{PUMPS}?$skip=1",
        "?$skip=1",
    ],
)
def test_next_page_of_the_same_controller_is_read(following: str) -> None:
    """A link is a URI reference of RFC 3986: hosts have no case, 80 is http's own port."""
    reading = read(asyncio.run(walker(Controller(paged(following))).walk()))
    found = [row["component_id"] for row in rows(reading, "coolant")]
    assert found == [f"{PUMPS}/1", f"{PUMPS}/2"]
    assert not reading.rejected


@pytest.mark.parametrize(
    "following",
    [
        f"http://other.test{PUMPS}?$skip=1",
        f"//other.test{PUMPS}?$skip=1",
        f"https://bmc.test{PUMPS}?$skip=1",
        f"http://bmc.test:8080{PUMPS}?$skip=1",
        f"http://user:s3cret@bmc.test{PUMPS}?$skip=1",
        f"http://bmc.test:x{PUMPS}?$skip=1",
        f"http://[bmc{PUMPS}",
        "http://bmc.test/elsewhere",
        "/redfish/v1/../../etc/passwd",
        5,
    ],
)
def test_next_page_elsewhere_is_noted_and_not_asked_for(following: object) -> None:
    asked: list[str] = []
    controller = Controller(paged(following))

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.copy_with(path="/", query=None)))
        return await controller(request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    one = Walker(http, "http://bmc.test", clock=ManualClock())
    reading = read(asyncio.run(one.walk()))
    assert [row["component_id"] for row in rows(reading, "coolant")] == [f"{PUMPS}/1"]
    assert set(asked) == {"http://bmc.test/"}
    assert set(controller.asked) == {
        "/redfish/v1", "/redfish/v1/ThermalEquipment", PUMPS, f"{PUMPS}/1",
    }  # fmt: skip
    assert reading.rejected["resource_not_read", ""] == 1
    (note,) = reading.notes
    assert note.startswith(f"{PUMPS}: its next page is not followed")
    assert "s3cret" not in note


@pytest.mark.parametrize("before", ["", "http://hall.test", "http://hall.test/redfish/cdu-1"])
def test_next_page_behind_a_prefix_is_read(before: str) -> None:
    tree = {
        f"/redfish/cdu-1{path}": answer
        for path, answer in paged(f"{before}{PUMPS}?$skip=1").items()
    }
    one = walker(Controller(tree), url="http://hall.test/redfish/cdu-1")
    assert len(rows(read(asyncio.run(one.walk())), "coolant")) == 2


def test_broken_resources_cost_themselves() -> None:
    members = [{"@odata.id": f"{PUMPS}/{number}"} for number in range(1, 6)]
    tree = cdu(
        {
            PUMPS: {"@odata.type": "#PumpCollection.PumpCollection", "Members": members},
            f"{PUMPS}/1": pump(1),
            f"{PUMPS}/2": httpx.ReadTimeout("slow"),
            f"{PUMPS}/3": httpx.Response(200, content=b"<html>"),
            f"{PUMPS}/4": httpx.Response(500),
            f"{PUMPS}/5": httpx.Response(200, content=b"[" * 5_000_000),
        }
    )
    reading = read(asyncio.run(walker(Controller(tree)).walk()))
    assert [row["component_id"] for row in rows(reading, "coolant")] == [f"{PUMPS}/1"]
    assert reading.rejected["resource_not_read", ""] == 4
    notes = "\n".join(reading.notes)
    assert f"{PUMPS}/2: timed out" in notes
    assert f"{PUMPS}/3: not JSON" in notes
    assert f"{PUMPS}/4: HTTP 500" in notes


@pytest.mark.parametrize("bad", ["\x01", "\ud800", "x" * 70_000])
def test_member_that_no_request_can_carry_costs_itself(bad: str) -> None:
    members = [{"@odata.id": f"{PUMPS}/{name}"} for name in ("1", bad, "2")]
    collection = {"@odata.type": "#PumpCollection.PumpCollection", "Members": members}
    tree = cdu(
        {
            PUMPS: httpx.Response(200, content=json.dumps(collection)),
            f"{PUMPS}/1": pump(1),
            f"{PUMPS}/2": pump(2),
        }
    )
    reading = read(asyncio.run(walker(Controller(tree)).walk()))
    found = [row["component_id"] for row in rows(reading, "coolant")]
    assert found == [f"{PUMPS}/1", f"{PUMPS}/2"]
    assert reading.rejected["resource_not_read", ""] == 1
    (note,) = reading.notes
    note.encode()  # it can be printed
    assert note.startswith(f"{PUMPS}/")
    assert len(note) < 1_000


@pytest.mark.parametrize("where", ["/redfish/v1/\x01", "http://[bmc/redfish/v1/Sessions/1"])
def test_session_that_cannot_be_addressed_costs_nothing_else(where: str) -> None:
    """The answer to a login names the session in ``Location``; the token alone is enough."""
    tree = cdu({PUMPS: pump(1)})

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(201, headers={"X-Auth-Token": "t", "Location": where})
        if request.headers.get("X-Auth-Token") != "t":
            return httpx.Response(401)
        found = tree.get(request.url.path)
        return httpx.Response(200, json=found) if found else httpx.Response(404)

    async def session() -> bytes:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        one = Walker(http, "https://b.test", clock=ManualClock(), credentials=Credentials("u", "p"))
        body = await one.walk()
        await one.close()
        return body

    assert len(rows(read(asyncio.run(session())), "coolant")) == 1


def test_second_walk_reads_what_carries_readings_until_it_is_time_to_look_again() -> None:
    tree = cdu(
        {
            PUMPS: {
                "@odata.type": "#PumpCollection.PumpCollection",
                "Members": [{"@odata.id": f"{PUMPS}/1"}],
            },
            f"{PUMPS}/1": pump(1),
        }
    )
    controller, clock = Controller(tree), ManualClock()

    async def walks() -> list[bytes]:
        one = walker(controller, clock)
        bodies = [await one.walk(), await one.walk()]
        clock.advance(LOOK_AGAIN_S)
        return [*bodies, await one.walk()]

    bodies = asyncio.run(walks())
    assert controller.asked[f"{PUMPS}/1"] == 3
    assert controller.asked[PUMPS] == 2
    # The manager is known at the second walk too, although its root was not read again.
    assert {row["manager_id"] for body in bodies for row in rows(read(body), "coolant")} == {
        "aaaa-bbbb"
    }


def test_walk_whose_time_runs_out_keeps_what_was_read() -> None:
    """Four pumps never answer and hold all places: those after them wait for their turn."""
    members = [{"@odata.id": f"{PUMPS}/{number}"} for number in range(1, 11)]
    tree = cdu({PUMPS: {"@odata.type": "#PumpCollection.PumpCollection", "Members": members}})
    tree.update({f"{PUMPS}/{number}": pump(number) for number in range(1, 11)})
    never = {f"{PUMPS}/{number}" for number in (3, 4, 5, 6)}
    controller = Controller(tree)

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path in never:
            await asyncio.Event().wait()
        return await controller(request)

    async def walks() -> list[bytes]:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        one = Walker(http, "http://bmc.test", clock=ManualClock(), timeout_s=0.05)
        bodies = [await one.walk(), await one.walk()]
        never.clear()
        return [*bodies, await one.walk()]

    *cut, whole = asyncio.run(walks())
    for body in cut:  # the second time says so too
        reading = read(body)
        found = [row["component_id"] for row in rows(reading, "coolant")]
        assert found == [f"{PUMPS}/1", f"{PUMPS}/2"]
        assert reading.rejected["resource_not_read", ""] == 8
        assert any("time ran out" in note for note in reading.notes)
    assert len(rows(read(whole), "coolant")) == 10
    assert not read(whole).rejected


def test_controller_that_never_answers_is_timed_out() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def walk() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        await Walker(http, "http://bmc.test", clock=ManualClock(), timeout_s=0.01).walk()

    with pytest.raises(WalkError) as caught:
        asyncio.run(walk())
    assert caught.value.reason == "timed_out"


def test_nothing_read_is_an_error() -> None:
    with pytest.raises(WalkError, match="HTTP 404"):
        asyncio.run(walker(Controller({})).walk())


def test_session_is_opened_once_and_given_back() -> None:
    members = [{"@odata.id": f"{PUMPS}/{number}"} for number in range(1, 9)]
    tree = cdu({PUMPS: {"@odata.type": "#PumpCollection.PumpCollection", "Members": members}})
    tree.update({f"{PUMPS}/{number}": pump(number) for number in range(1, 9)})
    controller = Controller(tree, password="s3cret")

    async def session() -> bytes:
        one = walker(controller, credentials=Credentials("monitor", "s3cret"))
        body = await one.walk()
        await one.walk()
        assert len(controller.tokens) == 1
        await one.close()
        return body

    assert len(rows(read(asyncio.run(session())), "coolant")) == 8
    assert controller.asked["/redfish/v1/SessionService/Sessions"] == 1
    assert controller.tokens == set()
    assert controller.open_most <= 4


def test_controller_without_sessions_gets_the_password_itself() -> None:
    tree = cdu({PUMPS: pump(1)})
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Authorization"))
        if request.method == "POST":
            return httpx.Response(404)
        if not request.headers.get("Authorization"):
            return httpx.Response(401)
        found = tree.get(request.url.path)
        return httpx.Response(200, json=found) if found else httpx.Response(404)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    one = Walker(http, "https://b.test", clock=ManualClock(), credentials=Credentials("u", "p"))
    assert len(rows(read(asyncio.run(one.walk())), "coolant")) == 1
    # "u:p" in base64; asked for once without, then always with it.
    assert asked.count("Basic dTpw") == len(asked) - 2


def test_wrong_password_says_so_without_it() -> None:
    controller = Controller(cdu({}), password="right")
    with pytest.raises(WalkError, match="login_refused") as caught:
        asyncio.run(walker(controller, credentials=Credentials("u", "wrong-one")).walk())
    assert "wrong-one" not in str(caught.value)
    assert "wrong-one" not in repr(Credentials("u", "wrong-one"))


def test_password_in_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="password") as caught:
        walker(Controller({}), url="https://root:pw@bmc.test")
    assert "pw@" not in str(caught.value)


def test_links_to_other_places_are_not_followed() -> None:
    tree = cdu(
        {
            PUMPS: {
                "@odata.type": "#PumpCollection.PumpCollection",
                "Members": [
                    {"@odata.id": "http://other.test/redfish/v1/Pumps/1"},
                    {"@odata.id": "/redfish/v1/../../etc/passwd"},
                    {"@odata.id": "//other.test/redfish/v1"},
                    {"@odata.id": f"{PUMPS}/1"},
                ],
            },
            f"{PUMPS}/1": pump(1),
        }
    )
    controller = Controller(tree)
    asyncio.run(walker(controller).walk())
    assert set(controller.asked) == {
        "/redfish/v1", "/redfish/v1/ThermalEquipment", PUMPS, f"{PUMPS}/1",
    }  # fmt: skip


def test_prefix_before_the_root_is_kept() -> None:
    tree = {f"/redfish/cdu-1{path}": answer for path, answer in cdu({}).items()}
    tree[f"/redfish/cdu-1{PUMPS}"] = {
        "@odata.type": "#PumpCollection.PumpCollection",
        "Members": [{"@odata.id": f"{PUMPS}/1"}],
    }
    tree[f"/redfish/cdu-1{PUMPS}/1"] = pump(1)
    one = walker(Controller(tree), url="http://hall.test/redfish/cdu-1", manager_id="cdu-1")
    (row,) = rows(read(asyncio.run(one.walk())), "coolant")
    assert (row["manager_id"], row["component_id"]) == ("cdu-1", f"{PUMPS}/1")


def test_whole_gb300_tray_is_walked(captures: Path) -> None:
    """52 of 72 links have no metrics, items name each other in circles: the walk ends."""
    tree: Tree = {}
    with tarfile.open(captures / "redfish" / "gb300" / "telemetry_tree.tar.gz") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                resource = json.load(stream)
                tree[resource["@odata.id"].rstrip("/")] = resource
    systems = {
        "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
        "Members": [{"@odata.id": path} for path in tree if "/Systems/" in path],
    }
    tree["/redfish/v1"] = {
        "@odata.type": "#ServiceRoot.v1_9_0.ServiceRoot",
        "Chassis": {"@odata.id": "/redfish/v1/Chassis"},
        "Systems": {"@odata.id": "/redfish/v1/Systems"},
    }
    tree["/redfish/v1/Systems"] = systems
    controller = Controller(tree)

    async def two_walks() -> tuple[bytes, int, bytes, int]:
        one = walker(controller)
        first = await one.walk()
        asked = controller.asked.total()
        second = await one.walk()
        return first, asked, second, controller.asked.total() - asked

    first, cost_1, second, cost_2 = asyncio.run(two_walks())
    links = rows(read(first), "nvlink")
    assert len(links) == 72
    assert sum(row["rx_bytes"] is not None for row in links) == 20
    assert read(first).rejected["resource_not_read", ""] >= 52
    assert len(rows(read(second), "nvlink")) == 72
    assert cost_2 < cost_1 / 2
    gpu_rows = [row for row in rows(read(second), "component") if row["entity_type"] == "gpu_bmc"]
    assert all(row["temp_margin_c"] > 50 and row["temp_c"] < 40 for row in gpu_rows)
