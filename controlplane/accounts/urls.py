"""REST addresses of tokens and the audit trail."""

from controlplane.accounts import views
from controlplane.routing import api_router

router = api_router()
router.register("tokens", views.TokenViewSet, basename="token")
router.register("audit", views.AuditViewSet, basename="audit")

urlpatterns = router.urls
