/* The functions by which tests control and inspect the stand-in. Plain prototypes, which cffi reads too.

   A violation is an argument that breaks cuDNN's contract. A refusal is a request that is well
   formed but that cuDNN does not support. Both come back as a status, too. "*" as a function or a
   kind means all of them; -1 or UINT64_MAX as a result means that there is no such name. */

/* Device memory. Every address passed to the library must lie inside a registered allocation.
   Both return 0, or -1 and a violation: NULL, an overlap, an address that is not registered. */
int standin_register(uintptr_t address, size_t bytes);
int standin_unregister(uintptr_t address);
size_t standin_registered(void);

/* Live objects of a kind: "handle" "tensor" "filter" "dropout" "rnn" "rnn_data" "backend". */
int64_t standin_live(const char *kind);

uint64_t standin_violations(void);
uint64_t standin_refusals(void);
/* The message of the last violation, "" if there was none. Valid until the next call. */
const char *standin_last_violation(void);

/* The nth call from now (1 is the next one) of a function returns the status and does nothing.
   "*" counts the calls of every function that returns a status, except the destroying ones: what
   they fail to destroy, nothing else can. nth 0 cancels the failure. Returns 0 or -1. */
int standin_fail(const char *function, uint64_t nth, int status);
/* The function that last failed on request, "" if none did since the last reset. */
const char *standin_failed(void);

/* Calls of a function since the last reset; "*" counts as in standin_fail. */
uint64_t standin_calls(const char *function);

/* The stream that was set last, and the one that a function's last call would have run on. */
uintptr_t standin_last_stream(void);
uintptr_t standin_stream_of(const char *function);

/* The dropout masks in a reserve space: [L-1, T, B, O*D] of 0 or 1/(1-p). Copies up to count of
   them into masks and returns how many there are: 0 without dropout or before a forward pass. */
size_t standin_dropout_masks(const void *reserve, size_t bytes, double *masks, size_t count);

/* Knobs. Version 91900 and 65535 steps are the defaults. A handle must stay with the thread that
   made it, unless that is switched off. */
void standin_set_version(size_t version);
void standin_set_max_steps(int steps);
/* The most operations of a graph that an engine fuses; 4 by default. */
void standin_set_max_operations(int operations);
void standin_check_threads(int on);

/* Forgets violations, refusals, counts, failures and streams, and sets the knobs back. Objects and
   registered memory stay. */
void standin_reset(void);
