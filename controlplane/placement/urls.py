"""REST addresses of sessions and placements."""

from controlplane.placement import views
from controlplane.routing import api_router

router = api_router()
router.register("sessions", views.SessionViewSet, basename="session")
router.register("sessions/(?P<session_id>[^/]+)/turns", views.TurnViewSet, basename="turn")
router.register("placements", views.PlacementViewSet, basename="placement")

urlpatterns = router.urls
