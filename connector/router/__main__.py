"""``python -m connector.router``: runs until SIGTERM or SIGINT, then drains; SIGHUP reads its files anew."""

import asyncio
import gc
import logging
import signal
import sys

import uvloop

from connector.router.app import Router
from connector.router.assembly import assemble
from connector.router.environment import ConfigurationError, Settings, read_settings
from connector.router.live import LiveFiles

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
    log_format = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=settings.log_level.current, stream=sys.stderr, format=log_format)
    if isinstance(settings.log_level, LiveFiles):
        settings.log_level.on_change = logging.getLogger().setLevel
    return uvloop.run(run(settings))


async def run(settings: Settings) -> int:
    """Exit status: 0 after a drain, 1 when the address is taken or a part of the router died."""
    router = Router(settings, assemble(settings))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, router.reload)
    try:
        await router.start()
    except OSError as error:
        sys.stderr.write(f"router: cannot listen on {settings.host}:{settings.port} ({error.strerror}).\n")
        return EXIT_FAILED
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    waits = [asyncio.create_task(event.wait()) for event in (stopping, router.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await router.stop()
    return EXIT_FAILED if router.failed.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
