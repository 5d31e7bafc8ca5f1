"""Fault injection on real pods and real servers, judged by a witness outside the service."""
