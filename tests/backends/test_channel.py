"""The channel that commands reach grpc:// with: a call ends in time whatever the far end does."""

from __future__ import annotations

import asyncio

from kernel_remote.channel import Channel

LIMIT_S = 60.0


def test_a_far_end_that_keeps_to_no_deadline_is_given_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        open_: list[asyncio.StreamWriter] = []
        greeting = b"\0\0\0\4\0\0\0\0\0"  # SETTINGS

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_.append(writer)
            if len(open_) > 1:
                writer.write(greeting)

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(2):  # one that says nothing, and one that greets and says nothing
            channel = Channel(f"grpc://127.0.0.1:{port}", {})
            ended: asyncio.Future[tuple[int, str]] = loop.create_future()
            channel.call("/a/b", b"", 0.05, lambda data: None, lambda *how, ended=ended: ended.set_result(how))  # type: ignore[misc]
            async with asyncio.timeout(LIMIT_S):
                assert await ended == (4, "Deadline Exceeded")
            assert not channel._calls
            channel.close()
        for writer in open_:
            writer.close()
        server.close()

    asyncio.run(main())


def test_who_closes_the_channel_as_a_call_is_late_ends_the_others_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        crashes: list[object] = []
        loop.set_exception_handler(lambda _, context: crashes.append(context))
        open_: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: open_.append(writer), "127.0.0.1", 0)
        channel = Channel(f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
        ended: list[int] = []
        done = loop.create_future()

        def first(status: int, words: str) -> None:
            ended.append(status)
            channel.close()
            loop.call_soon(done.set_result, None)

        channel.call("/a/b", b"", 0.05, lambda data: None, first)
        channel.call("/a/b", b"", 0.05, lambda data: None, lambda status, words: ended.append(status))
        async with asyncio.timeout(LIMIT_S):
            await done
        assert ended == [4, 14] and not channel._calls and not crashes
        for writer in open_:
            writer.close()
        server.close()

    asyncio.run(main())
