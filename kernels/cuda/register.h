/* All that the program knows of the CUDA back-end. */
#pragma once

/* cuda_register - make `device: cuda` known; needs no GPU and finds none yet. Once, before any device. */
void cuda_register(void);
