"""What released models reveal about single rows: membership inference with shadow runs (`sfedhp audit`)."""

from __future__ import annotations

from sfedhp.membership.audit import Audit, Finding, audit, audit_run

__all__ = ["Audit", "Finding", "audit", "audit_run"]
