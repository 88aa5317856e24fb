/* SPDX-License-Identifier: Apache-2.0
   Two libraries with a table each in one program: which table the calls of each reach. */
#include <stdio.h>

const char* table_of_first(void);
const char* table_of_second(void);

int main(void) {
  printf("first: %s\nsecond: %s\n", table_of_first(), table_of_second());
  return 0;
}
