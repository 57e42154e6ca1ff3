from collections import Counter


class NixlKVConnectorStats:
    def __init__(self):
        self.counts: Counter[str] = Counter()

    def record_transfer(self, res):
        self.counts["transfers"] += 1

    def record_failed_transfer(self):
        self.counts["failed"] += 1

    def record_kv_expired_req(self):
        self.counts["expired"] += 1
