"""REST addresses of policy."""

from controlplane.policy import views
from controlplane.routing import api_router

router = api_router()
router.register("policies", views.PolicyViewSet, basename="policy")

urlpatterns = router.urls
