"""One log line is one record: UTC time, then key=value pairs, then the message."""

import logging
import time


class LineFormatter(logging.Formatter):
    """Formats for stderr; a traceback follows its line as usual."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )
