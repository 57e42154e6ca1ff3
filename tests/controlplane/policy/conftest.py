import pytest

from controlplane.accounts.actions import create_token
from controlplane.accounts.models import TokenKind


@pytest.fixture
def agent_secret(transactional_db: None) -> str:
    return create_token(kind=TokenKind.AGENT, name="agents", actor="test", auto_approve=True)[1]


@pytest.fixture
def router_secret(transactional_db: None) -> str:
    return create_token(kind=TokenKind.ROUTER, name="routers", actor="test")[1]
