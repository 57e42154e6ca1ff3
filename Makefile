PYTHON ?= python3
LAUNCH = $(PYTHON) -m deploy.local

up:
	@$(LAUNCH) up
down:
	@$(LAUNCH) down
status:
	@$(LAUNCH) status
logs:
	@$(LAUNCH) logs $(S)
