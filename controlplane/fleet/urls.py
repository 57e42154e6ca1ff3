"""REST addresses of the fleet."""

from controlplane.fleet import views
from controlplane.routing import api_router

router = api_router()
router.register("engines", views.EngineViewSet, basename="engine")
router.register("agents", views.AgentViewSet, basename="agent")
router.register("routers", views.RouterViewSet, basename="router")
router.register("pairs", views.PairViewSet, basename="pair")
router.register("operations", views.OperationViewSet, basename="operation")

urlpatterns = router.urls
