"""The fat-tree as a fluid: demands, routes, loads, waits, back-pressure.

Directed links: HCA to leaf, leaf to HCA, leaf to spine ("up"), spine to leaf ("back"). A job's
traffic goes from each member to all its members, in part on its own rail, in part to every
rail; what leaves a leaf is spread over its uplinks by adaptive routing. What goes into a leaf
comes out of it, and both ends of a cable count the same bytes.

For a link with load x (share of line rate) and capacity k:

    blocked  = min(1, x / k) * (1 - k)                       the far side takes no more
    queueing = 0.012 * r^2 / (1 - r + 0.05), r = min(1, x / k)
    standing = 0.5 * (1 - 0.8 k / offered) where more was offered than fits
    wait     = blocked + queueing + standing + back-pressure of blocked links downstream,
               and never more than the time in which nothing was sent
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall.births import Births
from pipeline.hall.effects import Effects
from pipeline.hall.fleet import Fleet, Floats, Ints
from pipeline.hall.jobs import Schedule


@dataclass
class Flows:
    """Loads and waits as shares of line rate: per HCA (``out``, ``into``), per fabric link
    (``up``, ``back``). ``net`` is the factor on each job's step."""

    out: Floats
    into: Floats
    up: Floats
    back: Floats
    out_wait: Floats
    into_wait: Floats
    up_wait: Floats
    back_wait: Floats
    net: Floats


class Fabric:
    """Routes of one fleet's jobs; made once, used at every step."""

    def __init__(self, fleet: Fleet, schedule: Schedule, births: Births) -> None:
        self.fleet, self.schedule = fleet, schedule
        n, links = fleet.gpus, fleet.fabric_links
        self._wait_birth = np.split(births.wait, [n, 2 * n, 2 * n + links])
        jobs, leaves = len(schedule.partitions), fleet.leaves
        self._key = schedule.gpu_partition * leaves + fleet.gpu_leaf
        self._members = np.bincount(self._key, minlength=jobs * leaves).reshape(jobs, leaves)
        rail = np.arange(leaves) // fleet.leaves_per_rail
        self._same_rail = rail[:, None] == rail[None, :]
        per_rail = np.stack(
            [self._members[:, rail == r].sum(axis=1) for r in range(c.RAILS)], axis=1
        )
        self._rail_share = self._members / np.maximum(per_rail[:, rail], 1)
        self._all_share = self._members / np.maximum(self._members.sum(axis=1, keepdims=True), 1)
        self._up_pair = fleet.up_leaf * fleet.spines + fleet.up_spine

    def carry(
        self, effects: Effects, demand: Floats, weight_noise: Floats, wait_noise: Floats
    ) -> Flows:
        """Carry each HCA's ``demand`` (share of line rate, averaged over the step).

        Args:
            weight_noise: of the uplinks' shares, unit variance.
            wait_noise: of each direction's queueing, unit variance; HCA out, HCA in, up, back.
        """
        schedule = self.schedule
        demand = demand * effects.ib_scale[schedule.gpu_partition]
        incast = effects.incast
        out, into, up, up_offered, back = self._route(effects, demand, incast, weight_noise)
        over = self._overload(effects, out, into, up_offered, back)
        out_offered, into_offered = out, into
        if (over > 1.0).any():
            ease = over[schedule.gpu_partition]
            demand, incast = demand / ease, incast / ease
            out, into, up, up_offered, back = self._route(effects, demand, incast, weight_noise)
        parts = self._wait_birth
        noise = np.split(wait_noise, np.cumsum([parts[0].size, parts[1].size, parts[2].size]))
        split = [np.exp(0.22 * each) for each in noise]
        one = np.ones(1)
        out_wait = _wait(out, one, out_offered, split[0] * parts[0])
        into_wait = _wait(into, effects.down_cap, into_offered, split[1] * parts[1])
        up_wait = _wait(up, effects.up_cap, up_offered, split[2] * parts[2])
        back_wait = _wait(back, effects.back_cap, back, split[3] * parts[3])
        self._push_back(effects, into, up, back, into_wait, up_wait, back_wait, out_wait)
        worst = np.maximum.reduceat(np.maximum(out_wait, into_wait), schedule.first_gpu)
        net = np.maximum(over, 1.0) * (1.0 + 0.12 * worst)
        waits, loads = (out_wait, into_wait, up_wait, back_wait), (out, into, up, back)
        for wait, load, each in zip(waits, loads, noise, strict=True):
            # A link that sends does not wait; a little of the time it has nothing to send.
            np.clip(wait, 0.0, (1.0 - load) * (1.0 - 0.03 * np.abs(each)), out=wait)
        return Flows(out, into, up, back, out_wait, into_wait, up_wait, back_wait, net)

    def _route(
        self, effects: Effects, demand: Floats, incast: Floats, weight_noise: Floats
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        fleet, schedule = self.fleet, self.schedule
        jobs, leaves, spines = len(schedule.partitions), fleet.leaves, fleet.spines
        sent = np.bincount(self._key, weights=demand, minlength=jobs * leaves)
        sent = sent.reshape(jobs, leaves)
        cross = schedule.cross_rail[:, None]
        between = (sent * (1.0 - cross)).T @ self._rail_share * self._same_rail
        wide = (sent * cross).T @ self._all_share
        # What each member receives: its job's traffic to its leaf, shared evenly.
        rail_total = np.zeros((jobs, leaves))
        rail_of = np.arange(leaves) // fleet.leaves_per_rail
        for rail in range(c.RAILS):
            here = rail_of == rail
            rail_total[:, here] = (sent * (1.0 - cross))[:, here].sum(axis=1, keepdims=True)
        received = (
            rail_total * self._rail_share
            + (sent * cross).sum(axis=1, keepdims=True) * self._all_share
        )
        per_member = received / np.maximum(self._members, 1)
        into = per_member[schedule.gpu_partition, fleet.gpu_leaf]
        traffic = between + wide
        out = demand
        if incast.any():
            out, into = out.copy(), into.copy()
            self._add_incast(incast, out, into, traffic)
        np.fill_diagonal(traffic, 0.0)
        leaving = traffic.sum(axis=1)

        shares = (1.0 + 0.025 * weight_noise) * np.sqrt(effects.up_cap)
        if effects.up_extra.any():
            shares = shares * (1.0 + effects.up_extra)
        shares = shares / np.repeat(
            shares.reshape(leaves, fleet.uplinks).sum(axis=1), fleet.uplinks
        )
        dead = np.flatnonzero(effects.up_dead)
        if dead.size:
            self._move_load(effects, shares, dead)
        offered = shares * leaving[fleet.up_leaf]
        up = self._spill(effects, offered)
        per_pair = np.bincount(self._up_pair, weights=up, minlength=leaves * spines)
        toward = per_pair.reshape(leaves, spines)
        ratio = traffic / np.maximum(leaving[:, None], 1e-12)
        down = ratio.T @ toward  # leaf that receives, spine that sends
        back_shares = np.sqrt(effects.back_cap)
        back_shares[dead] = 1e-9
        group = np.bincount(self._up_pair, weights=back_shares, minlength=leaves * spines)
        back = down.reshape(-1)[self._up_pair] * back_shares / group[self._up_pair]
        return out, into, up, offered, back

    def _move_load(self, effects: Effects, shares: Floats, dead: Ints) -> None:
        """Static routing gives dead links' load, and more, to one neighbour; in place."""
        shares[dead] = 0.0
        by_leaf = shares.reshape(self.fleet.leaves, self.fleet.uplinks)
        for link in np.flatnonzero(effects.moved_load):  # a few at most
            leaf, port = divmod(int(link), self.fleet.uplinks)
            own = min((1.0 + effects.moved_load[link]) / self.fleet.uplinks, 0.9)
            rest = by_leaf[leaf].sum() - by_leaf[leaf, port]
            by_leaf[leaf] *= (1.0 - own) / max(rest, 1e-12)
            by_leaf[leaf, port] = own

    def _add_incast(self, incast: Floats, out: Floats, into: Floats, traffic: Floats) -> None:
        fleet, schedule = self.fleet, self.schedule
        for target in np.flatnonzero(incast):
            senders = np.flatnonzero(schedule.gpu_partition == schedule.gpu_partition[target])
            extra = incast[target]
            out[senders] += extra / senders.size
            into[target] += extra
            by_leaf = np.bincount(fleet.gpu_leaf[senders], minlength=fleet.leaves)
            traffic[:, fleet.gpu_leaf[target]] += extra * by_leaf / senders.size

    def _spill(self, effects: Effects, offered: Floats) -> Floats:
        """Put what does not fit on a link onto its leaf's other links."""
        capacity = c.MAX_LOAD * effects.up_cap * ~effects.up_dead
        carried = np.minimum(offered, capacity)
        leaf = self.fleet.up_leaf
        excess = np.bincount(leaf, weights=offered - carried, minlength=self.fleet.leaves)
        if not (excess > 1e-12).any():
            return carried
        room = capacity - carried
        free = np.bincount(leaf, weights=room, minlength=self.fleet.leaves)
        return carried + room * (np.minimum(excess, free) / np.maximum(free, 1e-12))[leaf]

    def _overload(
        self, effects: Effects, out: Floats, into: Floats, offered: Floats, back: Floats
    ) -> Floats:
        """Per job: by how much its busiest port, or all uplinks of a leaf together, are asked
        for more than they can carry."""
        host = np.maximum(out, into / effects.down_cap) / c.MAX_LOAD
        over = np.maximum.reduceat(host, self.schedule.first_gpu)
        fleet = self.fleet
        by_leaf = (fleet.leaves, fleet.uplinks)
        crowded = (back / effects.back_cap / c.MAX_LOAD).reshape(by_leaf).max(axis=1)
        room = (c.MAX_LOAD * effects.up_cap * ~effects.up_dead).reshape(by_leaf).sum(axis=1)
        worst = np.maximum(crowded, offered.reshape(by_leaf).sum(axis=1) / room)
        if worst.max(initial=0.0) > 1.0:
            touched = np.where(self._members > 0, worst[None, :], 0.0).max(axis=1)
            over = np.maximum(over, touched)
        return np.maximum(over, 1.0)

    def _push_back(
        self, effects: Effects, into: Floats, up: Floats, back: Floats,
        into_wait: Floats, up_wait: Floats, back_wait: Floats, out_wait: Floats,
    ) -> None:  # fmt: skip
        """Blocked links make those wait that feed them; in place."""
        fleet = self.fleet
        sources = (
            (effects.down_cap < 1.0) | (effects.incast > 0.0),
            (effects.up_cap < 1.0) | (effects.moved_load > 0.0),
            effects.back_cap < 1.0,
        )  # fmt: skip
        if not any(source.any() for source in sources):
            return
        leaf_down = np.zeros(fleet.leaves)
        leaf_up = np.zeros(fleet.leaves)
        spine_back = np.zeros(fleet.spines)
        slow = np.flatnonzero(sources[0])
        np.maximum.at(leaf_down, fleet.gpu_leaf[slow], into_wait[slow])
        held = np.flatnonzero(sources[1])
        np.maximum.at(leaf_up, fleet.up_leaf[held], up_wait[held])
        weak = np.flatnonzero(sources[2])
        np.maximum.at(spine_back, fleet.up_spine[weak], back_wait[weak])
        carrying_out = out_wait > 0.0
        loaded = np.minimum(back / 0.2, 1.0)
        back_wait += c.BACKPRESSURE_NEAR * leaf_down[fleet.up_leaf] * loaded
        near = 0.5 * c.BACKPRESSURE_NEAR * (leaf_down + leaf_up)[fleet.gpu_leaf]
        out_wait += near * carrying_out * np.minimum(into / 0.2, 1.0)
        up_wait += c.BACKPRESSURE_NEAR * 0.5 * spine_back[fleet.up_spine] * (up > 0.02)
        # One level further up: leaves that send to the blocked leaf.
        far = c.BACKPRESSURE_FAR * leaf_down.max(initial=0.0)
        if far > 0.0:
            blocked_jobs = np.unique(self.schedule.gpu_partition[slow])
            senders = self._members[blocked_jobs].sum(axis=0) > 0
            up_wait += far * senders[fleet.up_leaf] * np.minimum(up / 0.2, 1.0)


def _wait(load: Floats, capacity: Floats, offered: Floats, factor: Floats) -> Floats:
    reach = np.minimum(load / capacity, 1.0)
    blocked = np.minimum(reach / c.MAX_LOAD, 1.0) * (1.0 - capacity)
    queueing = c.QUEUE_WAIT * reach * reach / (1.0 - reach + c.QUEUE_SLACK) * factor
    limit = c.MAX_LOAD * capacity
    standing = c.STANDING_QUEUE_WAIT * np.maximum(0.0, 1.0 - limit / np.maximum(offered, 1e-12))
    standing = np.where(offered > limit, standing, 0.0)
    return blocked + queueing + standing
