"""``python -m connector.router``: runs until SIGTERM or SIGINT, then drains; SIGHUP reads its files anew."""

import asyncio
import gc
import logging
import signal
import sys

import uvloop

from connector.router.app import Router
from connector.router.assembly import assemble
from connector.router.environment import Settings, read_settings
from connector.router.live import LiveFiles
from connector.router.settingfiles import ConfigurationError
from connector.router.supervisor import Supervisor, end_with_parent

EXIT_CONFIGURATION = 2
EXIT_FAILED = 1

GC_THRESHOLD = 20_000
"""Requests make no cycles to speak of, and the index holds hundreds of thousands of objects to walk in vain."""


def main() -> int:
    try:
        settings = read_settings(sys.argv[1:])
    except ConfigurationError as error:
        sys.stderr.write(f"router: {error}\n")
        return EXIT_CONFIGURATION
    who = "" if settings.process_number is None else f"{settings.router_name} "
    log_format = f"%(asctime)s %(levelname)s {who}%(name)s %(message)s"
    logging.basicConfig(level=settings.log_level.current, stream=sys.stderr, format=log_format)
    if isinstance(settings.log_level, LiveFiles):
        settings.log_level.on_change = logging.getLogger().setLevel
    if settings.processes > 1 and settings.process_number is None:
        return asyncio.run(supervise(settings))
    return uvloop.run(run(settings))


async def supervise(settings: Settings) -> int:
    """Exit status: 0 after all processes drained, 1 when the address is taken or one ended badly."""
    try:
        return await Supervisor(settings, sys.argv[1:]).run()
    except OSError as error:
        return _cannot_listen(settings, error)


async def run(settings: Settings) -> int:
    """Exit status: 0 after a drain, 1 when the address is taken or a part of the router died."""
    router = Router(settings, assemble(settings))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, router.reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    if settings.process_number is not None:
        end_with_parent(stopping.set)
    try:
        await router.start()
    except OSError as error:
        return _cannot_listen(settings, error)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    waits = [asyncio.create_task(event.wait()) for event in (stopping, router.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await router.stop()
    return EXIT_FAILED if router.failed.is_set() else 0


def _cannot_listen(settings: Settings, error: OSError) -> int:
    sys.stderr.write(f"router: cannot listen on {settings.host}:{settings.port} ({error.strerror}).\n")
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
