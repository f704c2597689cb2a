/* retire.h: structures that go while another thread may still be looking at them. */
#ifndef PARTAGE_SIM_RETIRE_H
#define PARTAGE_SIM_RETIRE_H

/* Nobody can find `what` any more: `end` it as soon as no thread is inside the driver that may have found it before. */
void sim_retire(void (*end)(void *what), void *what);

#endif
