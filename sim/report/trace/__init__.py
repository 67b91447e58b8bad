"""Runs as traces: Chrome's, for Perfetto and HolisticTraceAnalysis, and Chakra's, for ASTRA-sim."""
