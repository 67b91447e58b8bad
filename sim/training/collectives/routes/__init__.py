"""Along which rings and chains of the link graph does NCCL send?"""
