"""REST addresses of transfers."""

from controlplane.routing import api_router
from controlplane.transfers import views

router = api_router()
router.register("transfers/minutes", views.PairMinuteViewSet, basename="pair-minute")
router.register("transfers", views.TransferViewSet, basename="transfer")

urlpatterns = router.urls
