"""Which findings of Stash (arXiv 2208.14344) about Amazon's P2 and P3 instances reappear in simulation?"""
