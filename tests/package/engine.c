/* A program outside Python that uses mosaic.h; built as C and as C++. Exit status 1, and a line, for what is wrong. */
#include "mosaic.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int wrong = 0;

static void expect(int condition, const char* what) {
  if (!condition) {
    printf("expected: %s (last error: \"%s\")\n", what, mosaic_last_error());
    wrong = 1;
  }
}

static void expect_error(int64_t result, const char* call) {
  expect(result < 0, call);
  expect(strlen(mosaic_last_error()) > 0, call);
}

int main(void) {
  expect(mosaic_last_error() != NULL, "a text before any call");
  if (mosaic_init() != 0) expect(strlen(mosaic_last_error()) > 0, "a reason why mosaic_init failed");

  expect_error(mosaic_job_register("engine", 4, 0, 1.1, 0), "a role that does not exist is refused");
  expect_error(mosaic_job_register(NULL, MOSAIC_ROLE_HP, 0, 1.1, 0), "a job without a name is refused");
  expect_error(mosaic_job_register("engine", MOSAIC_ROLE_HP, 4096, 1.1, 0), "a device that does not exist is refused");
  expect_error(mosaic_job_register("engine", MOSAIC_ROLE_HP, 0, 0.5, 0), "a bound below 1 is refused");
  expect_error(mosaic_job_unregister(-1), "an unknown job is refused");
  expect_error(mosaic_request_open(123456, 0), "a request of an unknown job is refused");
  expect_error(mosaic_request_begin(123456, 0, NULL), "a request of an unknown job is refused");
  expect_error(mosaic_request_close(-5), "an unknown request is refused");
  expect_error(mosaic_request_end(0), "an unknown request is refused");
  expect_error(mosaic_stream_set_role(NULL, 123456), "an unknown job is refused");
  expect_error(mosaic_record_start(123456), "an unknown job is refused");
  expect_error(mosaic_observe_start(123456, "{}"), "an unknown job is refused");
  expect_error(mosaic_kept_launch(0, NULL), "no launch where none was kept");
  expect_error(mosaic_partition_stream(0, 0, 0), "an unknown partition is refused");
  expect_error(mosaic_partition_close(0), "an unknown partition is refused");
  expect_error(mosaic_stream_create(4096, 0), "a device that does not exist is refused");
  expect_error(mosaic_configure("{\"policy\":"), "broken JSON is refused");
  expect_error(mosaic_configure("{\"no_such_setting\":1}"), "an unknown setting is refused");
  expect_error(mosaic_configure(NULL), "no JSON is refused");
  expect_error(mosaic_process_role(0, "engine", 1.1), "a role that does not exist is refused");

  char* stats = mosaic_stats_json();
  expect(stats != NULL && stats[0] == '{', "stats as a JSON object");
  mosaic_free(stats);
  char* doctor = mosaic_doctor_json();
  expect(doctor != NULL && doctor[0] == '{', "the doctor's report as a JSON object");
  mosaic_free(doctor);
  expect(mosaic_record_stop() == NULL, "no recording where none was started");
  expect(mosaic_observe_stop() == NULL, "no observation where none was started");
  expect(mosaic_device_json(4096) == NULL, "a device that does not exist is refused");
  expect(mosaic_partition(4096, 8) == NULL, "a device that does not exist is refused");
  mosaic_free(NULL);

  mosaic_shutdown();
  return wrong;
}
