"""REST addresses of tokens and the audit trail."""

from controlplane.accounts import views
from controlplane.routing import api_router

router = api_router()
router.register("tokens", views.TokenViewSet, basename="token")
router.register("router-keys", views.RouterKeyViewSet, basename="router-key")
router.register("audit", views.AuditViewSet, basename="audit")

urlpatterns = router.urls
