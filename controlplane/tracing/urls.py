"""REST addresses of traces."""

from controlplane.routing import api_router
from controlplane.tracing import views

router = api_router()
router.register("traces", views.TraceViewSet, basename="trace")

urlpatterns = router.urls
