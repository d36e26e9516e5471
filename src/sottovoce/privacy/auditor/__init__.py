"""What an observer of the messages learns: train, record, attack, and say it in words."""

from sottovoce.privacy.auditor.findings import Finding
from sottovoce.privacy.auditor.pipeline import audit
from sottovoce.privacy.auditor.recording import Recorded, record
from sottovoce.privacy.auditor.rows import Lined, Row
from sottovoce.privacy.auditor.settings import AuditSettings
from sottovoce.privacy.auditor.verdict import Audit

__all__ = ["Audit", "AuditSettings", "Finding", "Lined", "Recorded", "Row", "audit", "record"]
