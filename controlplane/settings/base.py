"""Settings shared by production and tests; everything that varies comes from ``controlplane.environment``."""

from typing import Any

from controlplane import environment

try:
    ENVIRONMENT = environment.current()
except environment.InvalidEnvironmentError as error:
    raise SystemExit(f"backhaul: {error}") from None

SECRET_KEY = ENVIRONMENT.secret_key
DEBUG = False
ALLOWED_HOSTS = list(ENVIRONMENT.allowed_hosts)
ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

LOCAL_APPS = ["accounts", "fleet", "policy", "placement", "transfers", "tracing", "dashboard"]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "channels",
    "django.contrib.postgres",
    "django_filters",
    "rest_framework",
    "drf_spectacular",
    *(f"controlplane.{name}" for name in LOCAL_APPS),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "controlplane.headers.SecurityHeadersMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": ENVIRONMENT.database.host,
        "PORT": ENVIRONMENT.database.port,
        "NAME": ENVIRONMENT.database.name,
        "USER": ENVIRONMENT.database.user,
        "PASSWORD": ENVIRONMENT.database.password,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            **ENVIRONMENT.database.options,
            "pool": {"min_size": 1, "max_size": ENVIRONMENT.pool_size, "timeout": 10},
        },
    }
}
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [ENVIRONMENT.redis_url], "prefix": "backhaul"},
    }
}
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": ENVIRONMENT.redis_url,
        "KEY_PREFIX": "backhaul",
    }
}

REDIS_URL = ENVIRONMENT.redis_url
CELERY_BROKER_URL = ENVIRONMENT.redis_url
CELERY_RESULT_BACKEND = ENVIRONMENT.redis_url
CELERY_RESULT_EXPIRES = 3600
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_TIME_LIMIT = 120
CELERY_TASK_DEFAULT_QUEUE = "backhaul"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

AUTH_USER_MODEL = "accounts.User"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENVIRONMENT.behind_tls
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "controlplane.errors.csrf_failure"
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ENVIRONMENT.allowed_hosts] if ENVIRONMENT.behind_tls else []
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENVIRONMENT.behind_tls else None
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if ENVIRONMENT.behind_tls else 0
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 100

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True
FRONTEND_DIST = ENVIRONMENT.frontend_dist
TRACE_RETENTION_HOURS = ENVIRONMENT.trace_retention_hours
OTLP_ENDPOINT = ENVIRONMENT.otlp_endpoint

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.accounts.authentication.BearerAuthentication",
        "controlplane.accounts.authentication.BrowserSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.accounts.permissions.IsOperator"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "controlplane.pagination.TimeOrderedPagination",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "controlplane.errors.problem_response",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Backhaul",
    "DESCRIPTION": "Control plane for two-way KV-cache transfer in vLLM prefill/decode fleets.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "TokenKindEnum": "controlplane.accounts.models.TokenKind",
        "EnforcerKindEnum": "controlplane.policy.models.EnforcerKind",
        "EngineStateEnum": "controlplane.fleet.models.State",
        "OperationStateEnum": "controlplane.fleet.models.OperationState",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "controlplane.routing.without_trailing_slashes",
    ],
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "controlplane.logs.LineFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": ENVIRONMENT.log_level},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # Tasks run each second or two; a line for each would bury what matters. Failures are errors and show.
        **{name: {"level": "WARNING"} for name in ("celery.app.trace", "celery.beat", "celery.worker.strategy")},
    },
}
