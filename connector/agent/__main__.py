"""``python -m connector.agent``: exit status 0 after a signal, 2 when it can't start, else a part failed."""

import logging
import os
import sys

import uvloop

from connector.agent.app import run_agent
from connector.agent.environment import ConfigurationError, read_options

LOG_FORMAT = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"


def main() -> int:
    try:
        options = read_options(sys.argv[1:], os.environ)
        logging.basicConfig(level=options.log_level, format=LOG_FORMAT)
        for url in options.plaintext_token_targets():
            logging.getLogger(__name__).warning("token_sent_unencrypted url=%s", url)
        uvloop.run(run_agent(options))
    except ConfigurationError as error:
        sys.stderr.write(f"backhaul agent: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
