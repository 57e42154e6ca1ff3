"""Everything that runs beside the engines: control plane, celery, agents, router."""

from deploy.local.engines import Engine, engines_of
from deploy.local.environment import Options
from deploy.local.programs import Program
from deploy.local.readiness import celery_node
from deploy.local.sources import sources_of

CELERY_CONCURRENCY = 2


def controlplane_variables(options: Options, database_url: str, redis_url: str) -> dict[str, str]:
    """Of every Django process, ``manage.py`` included."""
    layout = options.layout
    return {
        "BACKHAUL_DATABASE_URL": database_url,
        "BACKHAUL_FRONTEND_DIST": str(layout.frontend / "dist"),
        "BACKHAUL_LOG_LEVEL": options.log_level,
        "BACKHAUL_REDIS_URL": redis_url,
        "BACKHAUL_SECRET_KEY_FILE": str(layout.run / "secret-key"),
        "BACKHAUL_TRACE_RETENTION_HOURS": options.trace_retention_hours,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings.production",
        "PYTHONUNBUFFERED": "1",
    }


def controlplane_programs(options: Options, variables: dict[str, str]) -> tuple[Program, ...]:
    layout = options.layout
    sources = sources_of(layout, "controlplane")
    celery = (layout.main_python, "-m", "celery", "-A", "controlplane")
    environment = {**variables, "BACKHAUL_SOURCES": sources}
    return (
        Program(
            name="controlplane",
            command=(
                *(layout.main_python, "-m", "uvicorn", "controlplane.asgi:application"),
                *("--host", "127.0.0.1", "--port", str(options.ports.controlplane)),
                *("--backlog", "4096", "--lifespan", "off", "--no-access-log", "--timeout-graceful-shutdown", "5"),
            ),
            environment=environment,
            port=options.ports.controlplane,
            port_variable="BACKHAUL_CONTROLPLANE_PORT",
            health="http /readyz",
        ),
        Program(
            name="celery-worker",
            command=(
                *(*celery, "worker", "--concurrency", str(CELERY_CONCURRENCY), "--loglevel", "INFO"),
                *("--hostname", celery_node(layout)),
            ),
            environment=environment,
            health="celery",
            stop_seconds=30,
        ),
        Program(
            name="celery-beat",
            command=(
                *(*celery, "beat", "--loglevel", "INFO", "--pidfile", ""),
                *("--schedule", layout.state / "celery-beat"),
            ),
            environment=environment,
        ),
    )


def agent_name(engine: Engine) -> str:
    return f"agent-{engine.name}"


def agent_program(options: Options, engine: Engine) -> Program:
    layout = options.layout
    return Program(
        name=agent_name(engine),
        command=(layout.main_python, "-m", "connector.agent"),
        environment={
            "BACKHAUL_AGENT_TOKEN_FILE": str(layout.run / "agent-token"),
            "BACKHAUL_CONTROLPLANE_URL": options.controlplane_url,
            "BACKHAUL_ENGINE_NAME": engine.name,
            "BACKHAUL_ENGINE_URL": engine.url,
            "BACKHAUL_FEED_PORT": str(engine.feed_port),
            "BACKHAUL_FEED_TOKEN_FILE": str(layout.run / "feed-token"),
            "BACKHAUL_LINK_PATH": str(layout.link_path(engine.name)),
            "BACKHAUL_LOG_LEVEL": options.log_level,
            "BACKHAUL_SOURCES": sources_of(layout, "connector/agent"),
            "BACKHAUL_STATE_DIR": str(layout.state),
            "PYTHONUNBUFFERED": "1",
        },
        port=engine.feed_port,
        port_variable=f"BACKHAUL_{engine.role.upper()}_PORT",
        health="answers /feed",
    )


def router_program(options: Options, redis_url: str) -> Program:
    layout = options.layout
    return Program(
        name="router",
        command=(layout.main_python, "-m", "connector.router"),
        environment={
            "BACKHAUL_CONTROLPLANE_URL": options.controlplane_url,
            "BACKHAUL_ENGINE_KEY_FILE": str(layout.run / "engine-key"),
            "BACKHAUL_FEED_TOKEN_FILE": str(layout.run / "feed-token"),
            "BACKHAUL_FLEET_KEY_FILE": str(layout.run / "fleet.key"),
            "BACKHAUL_LOG_LEVEL": options.log_level,
            "BACKHAUL_ROUTER_HOST": "127.0.0.1",
            "BACKHAUL_ROUTER_NAME": "router-0",
            "BACKHAUL_ROUTER_PORT": str(options.ports.router),
            "BACKHAUL_ROUTER_REDIS_URL": redis_url,
            "BACKHAUL_ROUTER_TOKEN_FILE": str(layout.run / "router-token"),
            "BACKHAUL_SOURCES": sources_of(layout, "connector/router"),
            "BACKHAUL_STATE_DIR": str(layout.state),
            "PYTHONUNBUFFERED": "1",
        },
        port=options.ports.router,
        port_variable="BACKHAUL_ROUTER_PORT",
        health="http /healthz",
    )


def front_programs(options: Options, router_redis_url: str) -> tuple[Program, ...]:
    """What needs the control plane: an agent for each engine, and the router."""
    return (
        *(agent_program(options, engine) for engine in engines_of(options)),
        router_program(options, router_redis_url),
    )
