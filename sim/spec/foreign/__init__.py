"""Reads and writes files of other programs: model configurations, launch files, topology prints, Chakra traces."""
