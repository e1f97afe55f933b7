import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hisparse_operator.workqueue import WorkQueue, backoff

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"),
    [
        pytest.param(1, 0.0, 0.5, id="the first failure waits half a second"),
        pytest.param(2, 0.0, 1.0, id="each further one twice as long"),
        pytest.param(10, 0.0, 256.0, id="the tenth four minutes"),
        pytest.param(11, 0.0, 300.0, id="never more than five minutes"),
        pytest.param(10**9, 0.0, 300.0, id="however often"),
        pytest.param(10**9, 1.0, 225.0, id="spread by a quarter"),
    ],
)
def test_backoff(failures: int, chance: float, seconds: float) -> None:
    assert backoff(failures, chance) == seconds


def queue() -> WorkQueue[str]:
    return WorkQueue(chance=lambda: 0.0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def _takes(work: WorkQueue[str], times: int) -> list[tuple[float, str | None]]:
    found = []
    for _ in range(times):
        key = await work.get()
        found.append((now(), key))
        if key is not None:
            work.done(key)
    return found


def test_a_key_is_in_the_queue_once_and_keys_come_in_order(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        for key in ("a", "b", "a", "c", "b"):
            work.add(key)
        assert len(work) == 3
        assert [key for _, key in await _takes(work, 3)] == ["a", "b", "c"]

    on_jumping_time(scene())


def test_of_two_delays_the_earlier_counts(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a", 600)
        work.add("a", 5)
        work.add("a", 60)
        assert work.delayed == 1
        assert await _takes(work, 1) == [(5, "a")]
        assert work.delayed == 0

    on_jumping_time(scene())


def test_a_key_in_hand_comes_back_only_when_it_is_let_go(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        assert await work.get() == "a"
        work.add("a", 60)
        work.add("a")
        assert (len(work), work.delayed, work.held) == (0, 0, 1)
        await asyncio.sleep(7)
        work.done("a")
        assert await _takes(work, 1) == [(7, "a")]

    on_jumping_time(scene())


def test_a_failed_key_waits_out_its_delay_whatever_events_arrive(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        times = []
        work.add("a")
        for _ in range(4):
            assert await work.get() == "a"
            times.append(now())
            work.add("a")  # an event during the pass
            work.fail("a")
            work.done("a")
            work.add("a")  # and one after it
        assert times == [0, 0.5, 1.5, 3.5]

    on_jumping_time(scene())


def test_an_edit_ends_the_wait_and_forgets_the_failures(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        await work.get()
        assert work.fail("a", at_least=250) == 250
        work.done("a")
        await asyncio.sleep(3)
        work.add("a", urgent=True)
        assert await _takes(work, 1) == [(3, "a")]
        assert work.failures("a") == 0

    on_jumping_time(scene())


def test_a_failed_key_comes_for_a_look_where_that_is_wanted_and_is_tried_again_in_time(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        seen = []
        for _ in range(5):
            assert await work.get() == "a"
            seen.append((now(), work.waits("a")))
            if work.waits("a"):
                work.add("a", 3)  # an event during a look
            else:
                work.fail("a", at_least=8, looks=True)
            work.done("a")
            if len(seen) == 1:
                work.add("a", 2)
        assert seen == [(0, False), (2, True), (5, True), (8, False), (16, False)]

    on_jumping_time(scene())


def test_a_look_without_events_leaves_the_next_try_where_it_was(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        await work.get()
        work.fail("a", at_least=60, looks=True)
        work.done("a")
        work.add("a", 1)
        assert await _takes(work, 2) == [(1, "a"), (60, "a")]

    on_jumping_time(scene())


@pytest.mark.parametrize("looks", [False, True])
def test_an_edit_during_a_pass_that_then_fails_does_not_wait(on_jumping_time: Run, looks: bool) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        await work.get()
        work.add("a", urgent=True)
        work.fail("a", at_least=250, looks=looks)
        work.done("a")
        assert await _takes(work, 1) == [(0, "a")]
        assert not work.waits("a")

    on_jumping_time(scene())


def test_a_look_that_ends_after_the_time_of_the_next_try_does_not_swallow_it(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        await work.get()
        work.fail("a", at_least=8, looks=True)
        work.done("a")
        work.add("a", 7.9)
        await work.get()
        await asyncio.sleep(1)
        assert work.waits("a"), "it is a look to its end"
        work.done("a")
        assert await _takes(work, 1) == [(8.9, "a")]
        assert not work.waits("a")

    on_jumping_time(scene())


def test_after_a_success_nothing_waits(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("a")
        await work.get()
        work.fail("a", at_least=5, looks=True)
        work.forget("a")
        work.done("a")
        work.add("a", 1)
        assert await _takes(work, 1) == [(1, "a")]
        assert not work.waits("a")

    on_jumping_time(scene())


def test_a_key_never_lies_in_two_hands(on_jumping_time: Run) -> None:
    async def scene() -> int:
        work = queue()
        held: set[str] = set()
        passes = 0

        async def worker() -> None:
            nonlocal passes
            while (key := await work.get()) is not None:
                assert key not in held
                held.add(key)
                passes += 1
                await asyncio.sleep(0.3)
                held.discard(key)
                work.done(key)

        async def events() -> None:
            for number in range(200):
                work.add(f"key-{number % 7}", after=(number % 3) * 0.1)
                await asyncio.sleep(0.05)
            await asyncio.sleep(10)
            work.close()

        await asyncio.gather(events(), *(worker() for _ in range(4)))
        return passes

    assert 100 <= on_jumping_time(scene()) <= 200


def test_a_closed_queue_lets_every_worker_go(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        waiting = [asyncio.create_task(work.get()) for _ in range(3)]
        work.add("later", 5)
        await asyncio.sleep(1)
        work.close()
        work.add("never")
        assert await asyncio.gather(*waiting) == [None, None, None]

    on_jumping_time(scene())


def test_a_dropped_key_is_forgotten(on_jumping_time: Run) -> None:
    async def scene() -> None:
        work = queue()
        work.add("gone", 5)
        work.add("stays", 6)
        work.drop("gone")
        assert await _takes(work, 1) == [(6, "stays")]

    on_jumping_time(scene())
