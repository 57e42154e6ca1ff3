"""What happens to engines and links, up to the moment from which the next thing may be done."""

from connector.agent.app import Agent
from connector.protocol import EngineState
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.waiting import until


async def restart_engine(engine: FakeEngine, agent: Agent) -> None:
    """A new process on the same socket, after the agent has noticed that the old one is gone."""
    await engine.kill()
    await until(lambda: agent.mirror.state is EngineState.DOWN)
    await engine.start()


async def break_link(engine: FakeEngine) -> None:
    """Returns when the agent is connected again to the same process."""
    num_connections = engine.num_connections
    engine.drop_connection()
    await until(lambda: engine.num_connections > num_connections)
