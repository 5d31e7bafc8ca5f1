"""Fault injection on real pods and real servers, judged by an outside witness."""
